// What the parts of the shim share.
#pragma once

#include <exception>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/jit/api/module.h>

#include "shim.h"

namespace relevo_torch {

// How the value of one argument is made of input tensors.
struct Argument {
    enum Kind { LEAF, FIXED, TUPLE, LIST, DICTIONARY };
    Kind kind = FIXED;
    std::string name;
    // Whether it is None for rows that begin an episode.
    bool starts_empty = false;
    size_t leaf = 0;
    c10::IValue fixed;
    std::vector<Argument> parts;
    std::vector<std::string> keys;
};

// What an attribute is made of: tensors and numbers that keep their sizes. Numbers are handed over as tensors of one element.
struct Form {
    enum Kind { TENSOR, INT, DOUBLE, BOOL, OPTIONAL, TUPLE, LIST };
    Kind kind = TENSOR;
    c10::TypePtr type;
    // Of a tensor or number, one of its type and shape.
    at::Tensor like;
    // Of a tuple or list its parts, of an optional what it holds when it is set.
    std::vector<Form> parts;
};

// An attribute that forward changes.
struct State {
    std::string name;
    // Slots from the root object down to the attribute.
    std::vector<size_t> path;
    Form form;
    // Names and initial values of the tensors that it is handed over as.
    std::vector<std::string> names;
    std::vector<at::Tensor> initial;
};

// Names of attributes that a method may change.
struct Writes {
    // All of them.
    std::set<std::string> attributes;
    // Those whose tensors, or lists, it may write to; the others are only replaced.
    std::set<std::string> in_place;
    // Whether it may write to a constant of its code.
    bool constants = false;
};

// An attribute and where it is.
struct Attribute {
    std::string name;
    c10::TypePtr type;
    // Slots from the root object down to the attribute.
    std::vector<size_t> path;
    // The object whose slot it is, which may be reached by several paths.
    const c10::ivalue::Object *object;
    c10::IValue value;
};

// How an episode begins where the method makes its first state of None.
struct Start {
    // The input whose rows say by a mark that they begin; none where states are never None.
    std::optional<size_t> input;
    // Where inputs and outputs count rows; -1 for outputs that do not.
    std::vector<int64_t> input_axes;
    std::vector<int64_t> output_axes;
};

struct Program {
    torch::jit::Module module;
    c10::Device device = c10::kCPU;
    int threads = 1;
    // Whether all weights are bfloat16, so that inputs must be.
    bool narrows = false;
    // What `relevo.export` wrote into the archive about the inputs; empty where it did not.
    std::string declared;
    std::string method;
    std::vector<Argument> arguments;
    Start start;
    // Whether the code may write to an input, one for each leaf.
    std::vector<bool> writes;
    // What the method may change of the module.
    Writes memory;
    std::vector<State> states;
};

// What an exception says, without the traces of torch's own code.
std::string explain(const std::exception &error);
relevo_message message(const std::string &text);

// Runs `operation`, and gives what an exception says as a message.
template <typename Operation>
relevo_message guarded(Operation &&operation) {
    try {
        operation();
        return nullptr;
    } catch (const std::exception &error) {
        return message(explain(error));
    } catch (...) {
        return message("an error of unknown kind");
    }
}

inline void tell(relevo_each_text each, void *context, const std::string &text) {
    each(context, text.data(), text.size());
}

inline void tell(relevo_each_tensor each, void *context, const std::string &name, const at::Tensor &tensor) {
    each(context, name.data(), name.size(), static_cast<int32_t>(tensor.scalar_type()), tensor.sizes().data(),
         tensor.sizes().size());
}

// The method's graph with everything that it calls put in place.
std::shared_ptr<torch::jit::Graph> inlined(const torch::jit::Module &module, const std::string &method);

// What a condition is, where the module's own attributes settle it; those named in `changing` settle nothing.
std::optional<c10::IValue> settled(const torch::jit::Value *value, const torch::jit::Module &module,
                                   const std::set<std::string> &changing);
// What the method, and all that it calls, may change of the module.
Writes writes_of(const torch::jit::Module &module, const std::string &method);

// Whether values of this type are tensors, or hold some.
bool holds_tensor(const c10::TypePtr &type);
// Whether a node draws random numbers.
bool draws(const torch::jit::Node *node);

// A copy of the module whose attributes can be set apart from its own, and that shares their values until then.
torch::jit::Module copy_of(const torch::jit::Module &module);
// All attributes but the submodules, with those inside of these.
std::vector<Attribute> attributes(const torch::jit::Module &module);
// The object that holds the attribute at the end of the path.
c10::ivalue::Object &holder(const torch::jit::Module &module, const std::vector<size_t> &path);

// The form of a value of this type; a message where it holds something else.
Form form_of(const std::string &name, const c10::TypePtr &type, const c10::IValue &value);
// The names of the tensors that an attribute is handed over as.
void name_leaves(const Form &form, const std::string &name, std::vector<std::string> &names);
// Takes the value of the attribute `name` apart. One of another form is an error.
void spread(const std::string &name, const Form &form, const c10::IValue &value, std::vector<at::Tensor> &tensors);
// Puts a value together of the tensors from `at` on, which moves behind them. Numbers must be in the processor's memory.
c10::IValue gathered(const Form &form, const std::vector<at::Tensor> &tensors, size_t &at);

// Calls the method.
c10::IValue call(const torch::jit::Module &module, const Program &program, const std::vector<at::Tensor> &leaves);

// A tensor over the caller's memory, where that lies.
at::Tensor borrowed(const relevo_tensor &tensor);

}  // namespace relevo_torch
