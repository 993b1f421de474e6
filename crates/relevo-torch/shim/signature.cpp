// What a method takes, and what its code does with it.

#include "program.h"

#include <set>

#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/constants.h>

namespace relevo_torch {

namespace {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

// The keys that the code asks a dictionary for, in the order in which it does.
std::vector<std::string> keys_of(const Value *dictionary) {
    std::vector<std::string> keys;
    for (const auto &use : dictionary->uses()) {
        const auto *node = use.user;
        const bool asks = node->kind() == c10::aten::__getitem__ || node->kind().toQualString() == std::string("aten::get");
        if (!asks || use.offset != 0) continue;
        const auto key = torch::jit::toIValue(node->input(1));
        if (!key || !key->isString()) continue;
        if (std::find(keys.begin(), keys.end(), key->toStringRef()) == keys.end()) keys.push_back(key->toStringRef());
    }
    return keys;
}

// How many elements the code asks a list for.
size_t length_of(const Value *list) {
    size_t length = 0;
    for (const auto &use : list->uses()) {
        const auto *node = use.user;
        if (node->kind() == c10::prim::ListUnpack) length = std::max(length, node->outputs().size());
        if (node->kind() != c10::aten::__getitem__ || use.offset != 0) continue;
        const auto index = torch::jit::toIValue(node->input(1));
        if (index && index->isInt() && index->toInt() >= 0) {
            length = std::max(length, static_cast<size_t>(index->toInt()) + 1);
        }
    }
    return length;
}

// Collects the leaves of arguments while it builds them.
struct Builder {
    std::vector<std::string> leaves;

    Argument build(const std::string &name, const c10::TypePtr &type, const Value *value) {
        Argument argument;
        switch (type->kind()) {
            case c10::TypeKind::TensorType:
                argument.kind = Argument::LEAF;
                argument.leaf = leaves.size();
                leaves.push_back(name);
                return argument;
            case c10::TypeKind::OptionalType:
                return build(name, type->expectRef<c10::OptionalType>().getElementType(), value);
            case c10::TypeKind::TupleType: {
                argument.kind = Argument::TUPLE;
                const auto &elements = type->expectRef<c10::TupleType>().elements();
                for (size_t index = 0; index < elements.size(); ++index) {
                    const auto part = name + "." + std::to_string(index);
                    argument.parts.push_back(build(part, elements[index], nullptr));
                }
                return argument;
            }
            case c10::TypeKind::ListType: {
                argument.kind = Argument::LIST;
                const auto element = type->expectRef<c10::ListType>().getElementType();
                const size_t length = value == nullptr ? 0 : length_of(value);
                TORCH_CHECK(length > 0, "its code does not say how many tensors the list `", name, "` holds");
                expect_tensor(name, element);
                for (size_t index = 0; index < length; ++index) {
                    argument.parts.push_back(build(name + "." + std::to_string(index), element, nullptr));
                }
                return argument;
            }
            case c10::TypeKind::DictType: {
                argument.kind = Argument::DICTIONARY;
                const auto &dictionary = type->expectRef<c10::DictType>();
                expect_tensor(name, dictionary.getValueType());
                argument.keys = value == nullptr ? std::vector<std::string>() : keys_of(value);
                TORCH_CHECK(!argument.keys.empty(), "its code does not say which keys the dictionary `", name, "` holds");
                for (const auto &key : argument.keys) {
                    const bool taken = std::find(leaves.begin(), leaves.end(), key) != leaves.end();
                    argument.parts.push_back(build(taken ? name + "." + key : key, dictionary.getValueType(), nullptr));
                }
                return argument;
            }
            default:
                TORCH_CHECK(false, "its argument `", name, "` is a ", type->repr_str(), ", and not made of tensors");
        }
    }

    static void expect_tensor(const std::string &name, const c10::TypePtr &type) {
        TORCH_CHECK(type->kind() == c10::TypeKind::TensorType, "its argument `", name, "` holds ", type->repr_str(),
                    ", not tensors");
    }
};

void visit(at::ArrayRef<torch::jit::Block *> blocks, const std::function<void(Node *)> &each) {
    for (auto *block : blocks) {
        for (auto *node : block->nodes()) {
            each(node);
            visit(node->blocks(), each);
        }
    }
}

const std::set<std::string> RANDOM = {
    "multinomial", "bernoulli",   "bernoulli_", "normal",    "normal_",      "rand",         "rand_like",  "randn",
    "randn_like",  "randint",     "randint_like", "randperm", "uniform",     "uniform_",     "exponential", "exponential_",
    "poisson",     "random",      "random_",    "log_normal", "log_normal_", "cauchy",       "cauchy_",    "geometric",
    "geometric_",  "binomial",    "_standard_gamma", "_sample_dirichlet"};
const std::set<std::string> DROPOUT = {"dropout",  "dropout_",  "feature_dropout", "feature_dropout_",
                                       "alpha_dropout", "alpha_dropout_", "native_dropout"};

// Whether a dropout's `train` is on: a constant of the code, or the module's flag, which loading put out.
bool trains(const Node *node) {
    const auto train = torch::jit::toIValue(node->input(2));
    return train && train->isBool() && train->toBool();
}

}  // namespace

bool holds_tensor(const c10::TypePtr &type) {
    if (type->kind() == c10::TypeKind::TensorType) return true;
    for (const auto &inner : type->containedTypes()) {
        if (holds_tensor(inner)) return true;
    }
    return false;
}

bool draws(const Node *node) {
    if (!node->kind().is_aten()) return false;
    const std::string name = node->kind().toUnqualString();
    return RANDOM.count(name) != 0 || (DROPOUT.count(name) != 0 && trains(node));
}

}  // namespace relevo_torch

using namespace relevo_torch;

relevo_message relevo_torch_prepare(Program *program, const char *method, const relevo_text *optional,
                                    size_t optional_count, relevo_each_text each_input, void *context) {
    return guarded([&] {
        std::set<std::string> asked;
        for (size_t index = 0; index < optional_count; ++index) asked.emplace(optional[index].data, optional[index].size);
        const auto graph = inlined(program->module, method);
        const auto &schema = program->module.get_method(method).function().getSchema();
        // Through what a graph cannot tell apart (lists, dictionaries, attributes) anything may be written to.
        torch::jit::AliasDb aliases(graph);
        Builder builder;
        std::vector<Argument> arguments;
        std::vector<bool> writes;
        for (size_t index = 1; index < schema.arguments().size(); ++index) {
            const auto &declared = schema.arguments()[index];
            const auto *value = graph->inputs().at(index);
            const auto fallback = declared.default_value();
            if (fallback && asked.count(declared.name()) == 0) {
                Argument argument;
                argument.fixed = *fallback;
                arguments.push_back(argument);
                continue;
            }
            arguments.push_back(builder.build(declared.name(), declared.type(), value));
            arguments.back().name = declared.name();
            const bool plain = declared.type()->kind() == c10::TypeKind::TensorType;
            writes.resize(builder.leaves.size(), !plain || aliases.hasWriters(value));
        }
        TORCH_CHECK(!builder.leaves.empty(), "its method `", method, "` takes no tensor");
        program->method = method;
        program->arguments = std::move(arguments);
        program->start = {};
        program->writes = std::move(writes);
        program->memory = writes_of(program->module, method);
        for (const auto &leaf : builder.leaves) tell(each_input, context, leaf);
    });
}

relevo_message relevo_torch_start_empty(Program *program, const relevo_text *empty, size_t empty_count, size_t input,
                                        const int64_t *input_axes, const int64_t *output_axes, size_t output_count) {
    return guarded([&] {
        for (auto &argument : program->arguments) argument.starts_empty = false;
        program->start = {};
        for (size_t index = 0; index < empty_count; ++index) {
            const std::string name(empty[index].data, empty[index].size);
            for (auto &argument : program->arguments) argument.starts_empty |= argument.name == name;
        }
        if (empty_count == 0) return;
        program->start.input = input;
        program->start.input_axes.assign(input_axes, input_axes + program->writes.size());
        program->start.output_axes.assign(output_axes, output_axes + output_count);
    });
}

relevo_message relevo_torch_optional_arguments(const Program *program, const char *method, relevo_each_text each,
                                               void *context) {
    return guarded([&] {
        const auto &schema = program->module.get_method(method).function().getSchema();
        for (size_t index = 1; index < schema.arguments().size(); ++index) {
            const auto &declared = schema.arguments()[index];
            if (declared.default_value() && holds_tensor(declared.type())) tell(each, context, declared.name());
        }
    });
}

relevo_message relevo_torch_weights_with_nan(const Program *program, relevo_each_text each, void *context) {
    return guarded([&] {
        const c10::InferenceMode inference;
        const auto look = [&](const std::string &name, const c10::IValue &value) {
            if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().is_floating_point()) return;
            const auto tensor = value.toTensor();
            const auto bad = tensor.isnan().sum().item<int64_t>();
            if (bad == 0) return;
            tell(each, context, name + " holds NaN (" + std::to_string(bad) + " of " + std::to_string(tensor.numel()) +
                                    " numbers)");
        };
        for (const auto &attribute : attributes(program->module)) {
            if (program->memory.attributes.count(attribute.name) != 0) continue;
            look("weight `" + attribute.name + "`", attribute.value);
        }
        // Frozen modules have their weights here.
        visit({inlined(program->module, program->method)->block()}, [&](Node *node) {
            if (node->kind() != c10::prim::Constant || node->outputs().empty()) return;
            if (const auto constant = torch::jit::toIValue(node->output())) {
                look("constant `" + node->output()->debugName() + "`", *constant);
            }
        });
    });
}

relevo_message relevo_torch_random_operators(const Program *program, relevo_each_text each, void *context) {
    return guarded([&] {
        const auto graph = inlined(program->module, program->method);
        std::set<std::string> found;
        visit({graph->block()}, [&](Node *node) {
            if (draws(node)) found.insert(node->kind().toQualString());
        });
        for (const auto &name : found) tell(each, context, name);
    });
}
