// Sessions: the hot path.

#include "program.h"

#include <cstring>
#include <mutex>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Dict.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/jit/api/function_impl.h>

namespace relevo_torch {

namespace {

using c10::IValue;

c10::ScalarType scalar_type(const relevo_dtype &dtype) {
    const int type = dtype.lanes == 1 ? dtype.code * 1000 + dtype.bits : -1;
    switch (type) {
        case 6008: return c10::kBool;
        case 1008: return c10::kByte;
        case 8: return c10::kChar;
        case 16: return c10::kShort;
        case 32: return c10::kInt;
        case 64: return c10::kLong;
        case 1016: return c10::kUInt16;
        case 1032: return c10::kUInt32;
        case 1064: return c10::kUInt64;
        case 2016: return c10::kHalf;
        case 2032: return c10::kFloat;
        case 2064: return c10::kDouble;
        default: TORCH_CHECK(false, "torch has no element type of code ", int(dtype.code), " and ", int(dtype.bits), " bits");
    }
}

c10::Device device_of(const relevo_device &device) {
    if (device.kind == 1) return c10::kCPU;
    TORCH_CHECK(device.kind == 2, "torch reads no tensor on a device of DLPack's kind ", device.kind);
    return {c10::kCUDA, static_cast<c10::DeviceIndex>(device.index)};
}

// The type in which a tensor leaves: its own, or float32 for those that no array has (bfloat16).
relevo_dtype outer_type(c10::ScalarType type) {
    const auto of = [](uint8_t code, uint8_t bits) { return relevo_dtype{code, bits, 1}; };
    switch (type) {
        case c10::kBool: return of(6, 8);
        case c10::kByte: return of(1, 8);
        case c10::kChar: return of(0, 8);
        case c10::kShort: return of(0, 16);
        case c10::kInt: return of(0, 32);
        case c10::kLong: return of(0, 64);
        case c10::kUInt16: return of(1, 16);
        case c10::kUInt32: return of(1, 32);
        case c10::kUInt64: return of(1, 64);
        case c10::kHalf: return of(2, 16);
        case c10::kDouble: return of(2, 64);
        default: return of(2, 32);
    }
}

// A row of a state that begins with this NaN has no state yet. Calculations give other ones.
bool is_mark(const char *number, size_t size) {
    const auto is = [&](auto mark) { return std::memcmp(number, &mark, sizeof(mark)) == 0; };
    switch (size) {
        case 2: return is(uint16_t{0x7E4F});
        case 4: return is(uint32_t{0x7FC04E4F});
        case 8: return is(uint64_t{0x7FF8000000004E4F});
        default: return false;
    }
}

// The numbers of the rows that are marked, and those of the others.
std::pair<std::vector<int64_t>, std::vector<int64_t>> by_mark(const at::Tensor &states, int64_t axis) {
    std::pair<std::vector<int64_t>, std::vector<int64_t>> rows;
    const auto *data = static_cast<const char *>(states.const_data_ptr());
    const auto size = static_cast<int64_t>(states.element_size()), step = states.stride(axis) * size;
    for (int64_t row = 0; row < states.size(axis); ++row) {
        (is_mark(data + row * step, static_cast<size_t>(size)) ? rows.first : rows.second).push_back(row);
    }
    return rows;
}

IValue value_of(const Argument &argument, const std::vector<at::Tensor> &leaves, bool begins) {
    if (begins && argument.starts_empty) return {};
    switch (argument.kind) {
        case Argument::LEAF: return leaves[argument.leaf];
        case Argument::FIXED: return argument.fixed;
        case Argument::TUPLE: {
            std::vector<IValue> parts;
            for (const auto &part : argument.parts) parts.push_back(value_of(part, leaves, false));
            return c10::ivalue::Tuple::create(std::move(parts));
        }
        case Argument::LIST: {
            c10::List<at::Tensor> list;
            for (const auto &part : argument.parts) list.push_back(leaves[part.leaf]);
            return list;
        }
        case Argument::DICTIONARY: {
            c10::Dict<std::string, at::Tensor> dictionary;
            for (size_t index = 0; index < argument.keys.size(); ++index) {
                dictionary.insert(argument.keys[index], leaves[argument.parts[index].leaf]);
            }
            return dictionary;
        }
    }
    return {};
}

// The tensors of a result, in order; what is no tensor is passed over.
void flatten(const IValue &value, std::vector<at::Tensor> &tensors) {
    if (value.isTensor()) {
        tensors.push_back(value.toTensor());
    } else if (value.isTuple()) {
        for (const auto &part : value.toTupleRef().elements()) flatten(part, tensors);
    } else if (value.isList()) {
        for (const IValue &part : value.toListRef()) flatten(part, tensors);
    } else if (value.isGenericDict()) {
        for (const auto &entry : value.toGenericDict()) flatten(entry.value(), tensors);
    }
}

// Their names: by key where there is one, else by position.
void name(const IValue &value, const std::string &own, bool root, std::vector<std::string> &names) {
    const auto position = [&](size_t index) {
        return root ? "output_" + std::to_string(index) : own + "." + std::to_string(index);
    };
    if (value.isTensor()) {
        names.push_back(root ? "output_0" : own);
    } else if (value.isTuple()) {
        const auto &elements = value.toTupleRef().elements();
        const auto &schema = value.toTuple()->type<c10::TupleType>()->schema();
        for (size_t index = 0; index < elements.size(); ++index) {
            name(elements[index], schema ? schema->arguments()[index].name() : position(index), false, names);
        }
    } else if (value.isList()) {
        const auto elements = value.toListRef();
        for (size_t index = 0; index < elements.size(); ++index) name(elements[index], position(index), false, names);
    } else if (value.isGenericDict()) {
        for (const auto &entry : value.toGenericDict()) {
            name(entry.value(), entry.key().isString() ? entry.key().toStringRef() : position(0), false, names);
        }
    }
}

}  // namespace

IValue call(const torch::jit::Module &module, const Program &program, const std::vector<at::Tensor> &leaves) {
    torch::jit::Stack stack;
    stack.emplace_back(module._ivalue());
    for (const auto &argument : program.arguments) stack.push_back(value_of(argument, leaves, false));
    module.get_method(program.method).function().run(stack);
    return std::move(stack.front());
}

at::Tensor borrowed(const relevo_tensor &tensor) {
    auto *data = static_cast<char *>(tensor.data) + tensor.byte_offset;
    const auto device = device_of(tensor.device);
    auto maker = at::for_blob(data, c10::IntArrayRef(tensor.shape, tensor.ndim));
    if (tensor.strides != nullptr) maker.strides(c10::IntArrayRef(tensor.strides, tensor.ndim));
    return maker.options(at::TensorOptions(device).dtype(scalar_type(tensor.dtype))).target_device(device).make_tensor();
}

// Gives torch a number of threads for a call. What the program at large uses comes back afterwards: the number is one for
// the whole process, and training may go on in it. Where it is right already, nothing is set.
class Threads {
   public:
    explicit Threads(int count) : before_(at::get_num_threads()), changed_(before_ != count) {
        if (changed_) at::set_num_threads(count);
    }
    ~Threads() {
        if (changed_) at::set_num_threads(before_);
    }
    Threads(const Threads &) = delete;
    Threads &operator=(const Threads &) = delete;

   private:
    int before_;
    bool changed_;
};

// Keeps oneDNN out of calls with made-up shapes. Its recurrent layers believe what they are told of sizes, and write beyond
// their buffers where a traced module, which checks nothing, hands them a state of another size; torch's own layers refuse.
// The switch is one for the whole process: the last to leave puts it back.
class WithoutOneDnn {
   public:
    WithoutOneDnn() {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (inside_++ > 0) return;
        before_ = at::globalContext().userEnabledMkldnn();
        at::globalContext().setUserEnabledMkldnn(false);
    }
    ~WithoutOneDnn() {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (--inside_ == 0) at::globalContext().setUserEnabledMkldnn(before_);
    }
    WithoutOneDnn(const WithoutOneDnn &) = delete;
    WithoutOneDnn &operator=(const WithoutOneDnn &) = delete;

   private:
    static inline std::mutex mutex_;
    static inline int inside_ = 0;
    static inline bool before_ = true;
};

// One caller's copy of a program.
struct Session {
    torch::jit::Module module;
    torch::jit::Function *function;
    std::vector<Argument> arguments;
    Start start;
    std::vector<bool> writes;
    // Whether the module may keep what it is given.
    bool copies;
    // Whether float32 becomes bfloat16, which no array has.
    bool narrows;
    c10::Device device;
    int threads;

    // An attribute that holds memory, and the tensors of which its value is made before each call.
    struct Place {
        std::string name;
        c10::ivalue::Object *object;
        size_t slot;
        Form form;
        std::vector<at::Tensor> own;
    };
    std::vector<Place> places;
    // Tensors of all places.
    size_t held = 0;
    // Of a session apart: where what a call may change lies, and the program's own value of it.
    struct Changing {
        c10::ivalue::Object *object;
        size_t slot;
        IValue value;
    };
    std::vector<Changing> changing;

    // On another device: page-locked memory through which inputs and outputs go.
    std::vector<at::Tensor> staged_inputs;
    std::vector<at::Tensor> staged_outputs;
    std::vector<at::Tensor> leaves;
    std::vector<at::Tensor> results;
    torch::jit::Stack stack;

    Session(const Program &program, bool apart)
        : module(apart                    ? program.module.deepcopy()
                 : program.states.empty() ? program.module
                                          : copy_of(program.module)),
          function(&module.get_method(program.method).function()),
          arguments(program.arguments),
          start(program.start),
          writes(program.writes),
          copies(apart || !program.states.empty()),
          narrows(program.narrows),
          device(program.device),
          threads(program.threads),
          staged_inputs(program.writes.size()) {
        for (const auto &state : program.states) {
            Place place{state.name, &holder(module, state.path), state.path.back(), state.form, {}};
            for (const auto &tensor : state.initial) place.own.push_back(tensor.clone());
            held += place.own.size();
            places.push_back(std::move(place));
        }
        if (!apart) return;
        for (const auto &attribute : attributes(program.module)) {
            if (program.memory.attributes.count(attribute.name) == 0) continue;
            changing.push_back({&holder(module, attribute.path), attribute.path.back(), attribute.value});
        }
    }

    // Forgets what earlier calls left, also those that failed halfway.
    void forget() {
        for (const auto &own : changing) own.object->setSlot(own.slot, own.value.deepcopy());
    }

    // The caller's tensor as the module gets it: its own memory, where nothing can go wrong with that.
    at::Tensor leaf(const relevo_tensor &input, size_t index) {
        const auto place = device_of(input.device);
        TORCH_CHECK(place.is_cpu() || place == device, "an input lies on ", place, ", but the model runs on ", device);
        auto given = borrowed(input);
        if (narrows && given.scalar_type() == c10::kFloat) given = given.to(c10::kBFloat16);
        if (place == device) return writes[index] || copies ? given.clone() : given;
        if (!device.is_cuda()) return given.to(device);
        auto &staged = staged_inputs[index];
        if (!staged.defined() || staged.sizes() != given.sizes() || staged.scalar_type() != given.scalar_type()) {
            staged = at::empty(given.sizes(), given.options().pinned_memory(true));
        }
        staged.copy_(given);
        return staged.to(device, /*non_blocking=*/true);
    }

    // Runs the module; `value` receives what it gives, `results` its tensors, with the states at the end.
    IValue run(const relevo_tensor *inputs, size_t count) {
        const size_t own = writes.size();
        TORCH_CHECK(count == own + held, "it takes ", own + held, " inputs, but ", count, " came");
        leaves.clear();
        for (size_t index = 0; index < own; ++index) leaves.push_back(leaf(inputs[index], index));
        size_t input = own;
        for (auto &place : places) {
            for (auto &tensor : place.own) {
                const auto given = borrowed(inputs[input++]);
                TORCH_CHECK(given.sizes() == tensor.sizes(), "its state has the shape ", tensor.sizes(), ", but ",
                            given.sizes(), " came");
                tensor.copy_(given);
            }
            size_t at = 0;
            place.object->setSlot(place.slot, gathered(place.form, place.own, at));
        }
        const Threads limit(threads);
        IValue value;
        if (start.input) {
            const auto axis = start.input_axes[*start.input];
            const auto [begins, goes_on] = by_mark(borrowed(inputs[*start.input]).cpu(), axis);
            value = begins.empty() || goes_on.empty() ? pass(!begins.empty()) : passes(begins, goes_on);
        } else {
            value = pass(false);
        }
        for (const auto &place : places) spread(place.name, place.form, place.object->getSlot(place.slot), results);
        return value;
    }

    // One pass on the leaves; where all rows begin an episode, without what it makes itself then.
    IValue pass(bool begins) {
        stack.clear();
        stack.emplace_back(module._ivalue());
        for (const auto &argument : arguments) stack.push_back(value_of(argument, leaves, begins));
        function->run(stack);
        IValue value = std::move(stack.front());
        results.clear();
        flatten(value, results);
        return value;
    }

    // Two passes, one of the rows that begin an episode, one of the others.
    IValue passes(const std::vector<int64_t> &begins, const std::vector<int64_t> &goes_on) {
        const auto all = leaves;
        const auto numbers = [&](const std::vector<int64_t> &rows) { return at::tensor(rows, at::kLong).to(device); };
        const auto select = [&](const at::Tensor &rows) {
            for (size_t leaf = 0; leaf < all.size(); ++leaf) leaves[leaf] = all[leaf].index_select(start.input_axes[leaf], rows);
        };
        const auto first = numbers(begins), others = numbers(goes_on);
        select(first);
        pass(true);
        const auto of_first = results;
        select(others);
        IValue value = pass(false);
        TORCH_CHECK(of_first.size() == results.size(), "it gave ", of_first.size(), " tensors at the start of an episode, but ",
                    results.size(), " within one");
        for (size_t output = 0; output < results.size() && output < start.output_axes.size(); ++output) {
            const auto axis = start.output_axes[output];
            if (axis < 0) continue;
            auto sizes = results[output].sizes().vec();
            sizes.at(axis) = first.numel() + others.numel();
            auto joined = at::empty(sizes, results[output].options());
            joined.index_copy_(axis, first, of_first[output].to(joined.scalar_type()));
            results[output] = joined.index_copy_(axis, others, results[output]);
        }
        leaves = all;
        return value;
    }

    // Lets go of everything that a call made or borrowed.
    void finish() {
        leaves.clear();
        results.clear();
        stack.clear();
    }
};

namespace {

struct Finish {
    Session &session;
    ~Finish() { session.finish(); }
};

// Checks that the output has the caller's type and shape, or asks for memory; gives where it goes.
void *place_of(const at::Tensor &result, const relevo_tensor &output, size_t position, relevo_allocate allocate,
               void *context) {
    const auto type = outer_type(result.scalar_type());
    const auto sizes = result.sizes();
    if (output.data == nullptr) {
        void *memory = allocate(context, position, type, sizes.data(), static_cast<int32_t>(sizes.size()));
        TORCH_CHECK(memory != nullptr, "there is no memory for an output of shape ", sizes);
        return memory;
    }
    const c10::IntArrayRef expected(output.shape, output.ndim);
    TORCH_CHECK(sizes == expected, "it gave an output of shape ", sizes, ", where earlier passes gave ", expected);
    TORCH_CHECK(scalar_type(output.dtype) == scalar_type(type), "it gave an output of type ", result.scalar_type(),
                ", where earlier passes gave ", scalar_type(output.dtype));
    return static_cast<char *>(output.data) + output.byte_offset;
}

}  // namespace

}  // namespace relevo_torch

using namespace relevo_torch;

relevo_message relevo_torch_session(const Program *program, bool apart, Session **session) {
    return guarded([&] {
        const c10::InferenceMode inference;
        *session = new Session(*program, apart);
    });
}

void relevo_torch_release_session(Session *session) { delete session; }

relevo_message relevo_torch_probe(Session *session, const relevo_tensor *inputs, size_t count, relevo_each_tensor each,
                                  void *context) {
    return guarded([&] {
        const c10::InferenceMode inference;
        const Finish finish{*session};
        const WithoutOneDnn guard;
        session->forget();
        const auto value = session->run(inputs, count);
        std::vector<std::string> names;
        name(value, "", true, names);
        auto results = session->results;
        // What the results lead to may be the caller's memory, which is gone when they are asked for.
        for (auto &result : results) {
            TORCH_CHECK(!result.is_complex() && !result.is_sparse() && !result.is_quantized(),
                        "it gives a tensor that no array can hold: ", result.toString());
            result = result.to(c10::kCPU, /*non_blocking=*/false, /*copy=*/true);
        }
        for (size_t index = 0; index < results.size(); ++index) {
            auto shown = names.size() > index ? names[index] : std::string();
            const auto type = outer_type(results[index].scalar_type());
            const auto sizes = results[index].sizes();
            each(context, shown.data(), shown.size(), static_cast<int32_t>(scalar_type(type)), sizes.data(), sizes.size());
        }
        session->staged_outputs = std::move(results);
    });
}

relevo_message relevo_torch_probed(const Session *session, size_t output, double *values, size_t count) {
    return guarded([&] {
        const c10::InferenceMode inference;
        const auto tensor = session->staged_outputs.at(output).to(c10::kDouble).contiguous();
        TORCH_CHECK(static_cast<size_t>(tensor.numel()) == count, "an output of ", tensor.numel(), " elements");
        std::memcpy(values, tensor.const_data_ptr<double>(), count * sizeof(double));
    });
}

relevo_message relevo_torch_forward(Session *session, const relevo_tensor *inputs, size_t count, const size_t *wanted,
                                    const relevo_tensor *outputs, size_t wanted_count, relevo_allocate allocate,
                                    void *context) {
    return guarded([&] {
        const c10::InferenceMode inference;
        const Finish finish{*session};
        session->run(inputs, count);
        // Until then the device may still be reading inputs.
        const bool waits = session->device.is_cuda();
        for (size_t position = 0; position < wanted_count; ++position) {
            TORCH_CHECK(wanted[position] < session->results.size(), "it gave ", session->results.size(),
                        " tensors, but number ", wanted[position], " was asked for");
            const auto &result = session->results[wanted[position]];
            void *memory = place_of(result, outputs[position], position, allocate, context);
            const auto type = scalar_type(outer_type(result.scalar_type()));
            if (result.is_cpu() && result.is_contiguous() && result.scalar_type() == type) {
                std::memcpy(memory, result.const_data_ptr(), result.nbytes());
            } else if (result.is_cuda()) {
                // All outputs are on their way before the first is waited for.
                if (session->staged_outputs.size() <= position) session->staged_outputs.resize(position + 1);
                auto &staged = session->staged_outputs[position];
                if (!staged.defined() || staged.sizes() != result.sizes() || staged.scalar_type() != type) {
                    staged = at::empty(result.sizes(), at::TensorOptions().dtype(type).pinned_memory(true));
                }
                staged.copy_(result, /*non_blocking=*/true);
            } else {
                at::from_blob(memory, result.sizes(), type).copy_(result);
            }
        }
        if (!waits) return;
        const c10::impl::VirtualGuardImpl guard(session->device.type());
        guard.synchronizeStream(guard.getStream(session->device));
        for (size_t position = 0; position < wanted_count; ++position) {
            const auto &result = session->results[wanted[position]];
            if (!result.is_cuda()) continue;
            const auto &staged = session->staged_outputs[position];
            void *memory = place_of(result, outputs[position], position, allocate, context);
            std::memcpy(memory, staged.const_data_ptr(), staged.nbytes());
        }
    });
}
