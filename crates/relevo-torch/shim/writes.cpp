// What a method's code may change of the module itself: read off the code, because no call need show it.

#include "program.h"

#include <unordered_map>
#include <unordered_set>

namespace relevo_torch {

namespace {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Value;

// What a value may be, or hold, of the module's attributes. Constants of the code are one more thing that it may be.
using Roots = std::set<std::string>;
const std::string CONSTANT = "";

// These give what they were given at times, though their schemas do not say so.
bool may_give_its_input(const Node *node) {
    static const std::unordered_set<std::string> names = {
        "aten::dropout", "aten::feature_dropout", "aten::alpha_dropout", "aten::type_as",
        "aten::einsum",  "aten::atleast_1d",      "aten::atleast_2d",    "aten::atleast_3d"};
    return names.count(node->kind().toQualString()) != 0;
}

// Traces call them on every constant, and they change no number.
bool leaves_numbers(const Node *node) {
    const std::string name = node->kind().toQualString();
    return name == "aten::detach_" || name == "aten::requires_grad_";
}

// Normalisation that takes its statistics from the batch keeps them too, though its schema does not say so.
bool keeps_statistics(const Node *node) {
    static const std::unordered_set<std::string> names = {"aten::batch_norm", "aten::_batch_norm_impl_index",
                                                          "aten::native_batch_norm", "aten::instance_norm"};
    return names.count(node->kind().toQualString()) != 0 && node->inputs().size() > 5;
}

bool is_container(const c10::TypePtr &type) {
    return type->kind() == c10::TypeKind::ListType || type->kind() == c10::TypeKind::DictType;
}

// Follows the module's attributes through a method's graph.
class Reading {
   public:
    Reading(const torch::jit::Graph &graph, const torch::jit::Module &module) : module_(module), self_(graph.inputs()[0]) {
        assigned(graph.block());
        // Until nothing more is found: loops and attributes lead back.
        do {
            grew_ = false;
            through(graph.block());
        } while (grew_);
    }

    Writes writes;
    // Whether it calls what is not in the graph.
    bool calls = false;

   private:
    // Attributes that are set anywhere decide of no branch for good.
    void assigned(const Block *block) {
        for (const auto *node : block->nodes()) {
            if (node->kind() == c10::prim::SetAttr) assigned_.insert(node->s(c10::attr::name));
            for (const auto *inner : node->blocks()) assigned(inner);
        }
    }

    const Roots &roots(const Value *value) { return roots_[value]; }

    void add(Roots &to, const Roots &more) {
        const auto before = to.size();
        to.insert(more.begin(), more.end());
        grew_ = grew_ || to.size() != before;
    }

    void flow(const Value *value, const Value *from) {
        const auto more = roots(from);
        add(roots_[value], more);
    }

    // The name of a submodule, with a dot behind it; nothing for what is no submodule.
    std::optional<std::string> prefix_of(const Value *object) const {
        if (object == self_) return "";
        const auto *node = object->node();
        if (node->kind() != c10::prim::GetAttr) return std::nullopt;
        const auto outer = prefix_of(node->input(0));
        if (!outer) return std::nullopt;
        return *outer + node->s(c10::attr::name) + ".";
    }

    // The attributes that a node gets or sets: those of this name wherever it is not clear whose.
    Roots attributes_of(const Node *node) const {
        const auto &name = node->s(c10::attr::name);
        if (const auto prefix = prefix_of(node->input(0))) return {*prefix + name};
        Roots found;
        if (node->input(0)->node()->kind() == c10::prim::CreateObject) return found;
        for (const auto &attribute : module_.named_attributes()) {
            const auto dot = attribute.name.rfind('.');
            if ((dot == std::string::npos ? attribute.name : attribute.name.substr(dot + 1)) == name) {
                found.insert(attribute.name);
            }
        }
        return found;
    }

    void through(const Block *block) {
        for (const auto *node : block->nodes()) through(node);
    }

    void through(const Node *node) {
        const auto &inputs = node->inputs();
        if (node->kind() == c10::prim::If) {
            const auto known = settled(node->input(0), module_, assigned_);
            for (size_t index = 0; index < 2; ++index) {
                if (known && known->isBool() && known->toBool() != (index == 0)) continue;
                through(node->blocks()[index]);
                for (size_t output = 0; output < node->outputs().size(); ++output) {
                    flow(node->output(output), node->blocks()[index]->outputs()[output]);
                }
            }
        } else if (node->kind() == c10::prim::Loop) {
            const auto *body = node->blocks()[0];
            for (size_t index = 0; index < node->outputs().size(); ++index) {
                flow(body->inputs()[index + 1], node->input(index + 2));
                flow(body->inputs()[index + 1], body->outputs()[index + 1]);
                flow(node->output(index), body->inputs()[index + 1]);
            }
            through(body);
        } else if (node->kind() == c10::prim::GetAttr) {
            if (node->output()->type()->kind() == c10::TypeKind::ClassType) return;
            for (const auto &name : attributes_of(node)) {
                add(roots_[node->output()], {name});
                add(roots_[node->output()], held_[name]);
            }
            flow(node->output(), node->input(0));
        } else if (node->kind() == c10::prim::SetAttr) {
            const auto given = roots(node->input(1));
            const auto names = attributes_of(node);
            for (const auto &name : names) add(held_[name], given);
            add(writes.attributes, names);
            if (names.empty()) keep(node->input(0), node->input(1));
        } else if (node->kind() == c10::prim::Constant) {
            if (node->output()->type()->kind() == c10::TypeKind::TensorType) add(roots_[node->output()], {CONSTANT});
        } else if (node->kind() == c10::prim::CallMethod || node->kind() == c10::prim::CallFunction ||
                   node->kind() == c10::prim::fork) {
            calls = true;
            for (const auto *input : inputs) write(input);
            for (const auto *output : node->outputs()) {
                for (const auto *input : inputs) flow(output, input);
            }
        } else if (const auto *schema = node->maybeSchema()) {
            through(node, *schema);
        } else {
            // Tuples and the like.
            for (const auto *output : node->outputs()) {
                for (const auto *input : inputs) flow(output, input);
                if (!inputs.empty() && is_container(inputs[0]->type())) add(roots_[output], put_into_containers_);
            }
        }
    }

    void through(const Node *node, const c10::FunctionSchema &schema) {
        const auto &inputs = node->inputs();
        const auto alias = [](const std::vector<c10::Argument> &of, size_t index) {
            return index < of.size() ? of[index].alias_info() : nullptr;
        };
        for (size_t index = 0; index < inputs.size(); ++index) {
            const auto *own = alias(schema.arguments(), index);
            if (own == nullptr || !own->isWrite() || leaves_numbers(node)) continue;
            write(inputs[index]);
            if (!is_container(inputs[index]->type())) continue;
            for (const auto *other : inputs) {
                if (other != inputs[index]) keep(inputs[index], other);
            }
        }
        if (keeps_statistics(node)) {
            const auto trains = settled(node->input(5), module_, assigned_);
            if (!trains || !trains->isBool() || trains->toBool()) {
                write(node->input(3));
                write(node->input(4));
            }
        }
        for (size_t index = 0; index < node->outputs().size(); ++index) {
            const auto *output = node->output(index);
            const auto *own = alias(schema.returns(), index);
            const bool any = (own != nullptr && own->isWildcardBefore()) || may_give_its_input(node) ||
                             is_container(output->type());
            if (own == nullptr && !any) continue;
            for (size_t input = 0; input < inputs.size(); ++input) {
                if (any || alias(schema.arguments(), input) != nullptr) flow(output, inputs[input]);
            }
            if (!inputs.empty() && is_container(inputs[0]->type())) add(roots_[output], put_into_containers_);
        }
    }

    void write(const Value *value) {
        const auto given = roots(value);
        add(writes.in_place, given);
    }

    // What is put into a list or object may come out of any.
    void keep(const Value *container, const Value *value) {
        const auto given = roots(value);
        add(put_into_containers_, given);
        add(roots_[container], given);
    }

    const torch::jit::Module &module_;
    const Value *self_;
    std::set<std::string> assigned_;
    std::unordered_map<const Value *, Roots> roots_;
    std::unordered_map<std::string, Roots> held_;
    Roots put_into_containers_;
    bool grew_ = false;
};

void add(Writes &to, const Writes &more, const std::string &prefix) {
    for (const auto &name : more.attributes) to.attributes.insert(prefix + name);
    for (const auto &name : more.in_place) to.in_place.insert(name == CONSTANT ? name : prefix + name);
}

}  // namespace

Writes writes_of(const torch::jit::Module &module, const std::string &method) {
    const auto graph = inlined(module, method);
    const Reading reading(*graph, module);
    Writes found = reading.writes;
    if (reading.calls) {
        // Whichever of the module's methods these may be.
        for (const auto &submodule : module.named_modules()) {
            const auto prefix = submodule.name.empty() ? "" : submodule.name + ".";
            for (const auto &each : submodule.value.get_methods()) {
                add(found, Reading(*inlined(submodule.value, each.name()), submodule.value).writes, prefix);
            }
        }
    }
    found.constants = found.in_place.erase(CONSTANT) != 0;
    found.attributes.insert(found.in_place.begin(), found.in_place.end());
    return found;
}

}  // namespace relevo_torch
