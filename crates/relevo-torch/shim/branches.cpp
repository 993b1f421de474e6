// Where the code decides once for a whole batch what each row would decide for itself.

#include "program.h"

#include <unordered_map>
#include <unordered_set>

namespace relevo_torch {

namespace {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Value;

// The names without those of submodules before them.
std::set<std::string> own_names(const std::set<std::string> &names) {
    std::set<std::string> own;
    for (const auto &name : names) own.insert(name.substr(name.rfind('.') + 1));
    return own;
}

// Follows what the inputs hold, and how many rows they have, through the graph.
class Flow {
   public:
    // `axes` and `ranks` are those of each input tensor: where its rows are counted, and how many axes it has.
    Flow(torch::jit::Graph &graph, const Program &program, const size_t *axes, const size_t *ranks)
        : module_(program.module), changing_(own_names(program.memory.attributes)) {
        for (size_t index = 0; index + 1 < graph.inputs().size(); ++index) {
            const auto *input = graph.inputs()[index + 1];
            if (!holds_tensor(input->type())) continue;
            follow(input);
            const auto &argument = program.arguments.at(index);
            // One that is written to may be given another shape.
            if (argument.kind != Argument::LEAF || program.writes.at(argument.leaf)) continue;
            shapes_[input] = {axes[argument.leaf], ranks[argument.leaf]};
        }
        // Until nothing more is found: loops and attributes lead back.
        do {
            grew_ = false;
            through(graph.block());
        } while (grew_);
    }

    bool reaches(const Value *value) const { return found_.count(value) != 0; }

    // Which block of an `if` always runs, where that is known.
    std::optional<size_t> taken(const Node *node) const {
        if (reaches(node->input(0))) return std::nullopt;
        const auto condition = settled(node->input(0), module_, changing_);
        if (!condition || !condition->isBool()) return std::nullopt;
        return condition->toBool() ? 0 : 1;
    }

   private:
    void follow(const Value *value) {
        if (value->type()->kind() != c10::TypeKind::NoneType && found_.insert(value).second) grew_ = true;
    }

    void through(const Block *block) {
        for (const auto *node : block->nodes()) {
            for (const auto *inner : node->blocks()) through(inner);
            through(node);
        }
    }

    void through(const Node *node) {
        if (node->kind() == c10::prim::If) {
            const auto known = taken(node);
            for (size_t index = 0; index < node->outputs().size(); ++index) {
                const auto from = [&](size_t block) {
                    return known.value_or(block) == block && reaches(node->blocks()[block]->outputs()[index]);
                };
                if (reaches(node->input(0)) || from(0) || from(1)) {
                    follow(node->output(index));
                }
            }
        } else if (node->kind() == c10::prim::Loop) {
            // Inputs: the most rounds, whether to begin, what is handed on; of the body: the round, what is handed on.
            const auto *body = node->blocks()[0];
            const bool counted = reaches(node->input(0)) || reaches(node->input(1)) || reaches(body->outputs()[0]);
            if (counted) follow(body->inputs()[0]);
            for (size_t index = 0; index < node->outputs().size(); ++index) {
                const auto *after = body->outputs()[index + 1];
                if (!counted && !reaches(node->input(index + 2)) && !reaches(after)) continue;
                follow(body->inputs()[index + 1]);
                follow(node->output(index));
            }
        } else if (node->kind() == c10::prim::GetAttr) {
            if (attributes_.count(node->s(c10::attr::name)) != 0) follow(node->output());
        } else if (node->kind() == c10::prim::SetAttr) {
            if (reaches(node->input(1)) && attributes_.insert(node->s(c10::attr::name)).second) grew_ = true;
        } else {
            const auto &inputs = node->inputs();
            const bool any = std::any_of(inputs.begin(), inputs.end(), [&](const Value *value) { return reaches(value); });
            if (draws(node) || (any && !is_the_same_for_all(node))) {
                for (size_t index = 0; index < node->outputs().size(); ++index) {
                    if (!is_size_of_a_row(node, index)) follow(node->output(index));
                }
            }
            if (any) written(node);
        }
    }

    // What a node writes to holds what the node was given; so does what that is a view of.
    void written(const Node *node) {
        const auto *schema = node->maybeSchema();
        if (schema == nullptr) return;
        for (size_t index = 0; index < std::min(node->inputs().size(), schema->arguments().size()); ++index) {
            const auto *alias = schema->arguments()[index].alias_info();
            if (alias == nullptr || !alias->isWrite()) continue;
            const auto *value = node->input(index);
            follow(value);
            while (value->node()->kind().is_aten() && !value->node()->inputs().empty() &&
                   holds_tensor(value->node()->input(0)->type())) {
                value = value->node()->input(0);
                follow(value);
            }
        }
    }

    // Whether an output is the size of an input along an axis that does not count rows: `x.size(1)`, `x.shape[-1]`, or a
    // part of `rows, width = x.shape`. Every row has it.
    bool is_size_of_a_row(const Node *node, size_t output) const {
        const auto *shape = node->inputs().empty() ? nullptr : node->input(0)->node();
        if (node->kind() == c10::aten::size && node->inputs().size() == 2) {
            return is_axis_of_a_row(node->input(0), torch::jit::toIValue(node->input(1)));
        }
        if (shape == nullptr || shape->kind() != c10::aten::size || shape->inputs().size() != 1) return false;
        if (node->kind() == c10::aten::__getitem__) {
            return is_axis_of_a_row(shape->input(0), torch::jit::toIValue(node->input(1)));
        }
        return node->kind() == c10::prim::ListUnpack &&
               is_axis_of_a_row(shape->input(0), c10::IValue(static_cast<int64_t>(output)));
    }

    bool is_axis_of_a_row(const Value *tensor, const std::optional<c10::IValue> &axis) const {
        const auto known = shapes_.find(tensor);
        if (known == shapes_.end() || !axis || !axis->isInt()) return false;
        const auto rank = static_cast<int64_t>(known->second.rank);
        const auto index = axis->toInt() < 0 ? axis->toInt() + rank : axis->toInt();
        return index >= 0 && index < rank && index != static_cast<int64_t>(known->second.axis);
    }

    // Whether a node tells of a tensor only what no row and no number of rows changes.
    static bool is_the_same_for_all(const Node *node) {
        static const std::unordered_set<std::string> names = {
            "aten::__is__",       "aten::__isnot__",    "aten::dim",     "aten::is_floating_point", "prim::dtype",
            "prim::device",       "prim::layout",       "prim::is_cuda", "prim::requires_grad",     "prim::isinstance",
            "aten::is_complex",   "aten::__contains__", "prim::type",    "aten::get_device",        "aten::is_contiguous"};
        if (names.count(node->kind().toQualString()) != 0) return true;
        if (node->kind() != c10::aten::len) return false;
        // How many axes there are, or how many parts an argument has.
        const auto *list = node->input(0);
        if (list->type()->kind() == c10::TypeKind::TensorType) return false;
        return list->node()->kind() == c10::aten::size || list->node()->kind() == c10::prim::ListConstruct ||
               list->node()->kind() == c10::prim::Param;
    }

    struct Shape {
        size_t axis;
        size_t rank;
    };

    const torch::jit::Module &module_;
    const std::set<std::string> changing_;
    std::unordered_map<const Value *, Shape> shapes_;
    std::unordered_set<const Value *> found_;
    std::unordered_set<std::string> attributes_;
    bool grew_ = false;
};

// Whether a branch only ends in an error.
bool raises(const Block *block) {
    const auto nodes = block->nodes();
    return std::any_of(nodes.begin(), nodes.end(),
                       [](const Node *node) { return node->kind() == c10::prim::RaiseException; });
}

// Whether a value decides of nothing but other branches, as the parts of `a and b` do.
bool only_decides(const Value *value) {
    if (value->type()->kind() != c10::TypeKind::BoolType) return false;
    for (const auto &use : value->uses()) {
        const auto *user = use.user;
        if (user->kind() == c10::prim::If) continue;
        const bool negated = user->kind() == c10::aten::__not__ && only_decides(user->output());
        const auto *owner = user->kind() == c10::prim::Return ? user->owningBlock()->owningNode() : nullptr;
        const bool returned = owner != nullptr && owner->kind() == c10::prim::If && only_decides(owner->output(use.offset));
        if (!negated && !returned) return false;
    }
    return true;
}

bool changes_anything(const Block *block) {
    for (const auto *node : block->nodes()) {
        const auto *schema = node->maybeSchema();
        if (node->hasSideEffects() || (schema != nullptr && schema->is_mutable())) return true;
        for (const auto *inner : node->blocks()) {
            if (changes_anything(inner)) return true;
        }
    }
    return false;
}

// Whether the branches are no more than an `and` or `or` in a condition, which is looked at where it decides.
bool is_part_of_a_condition(const Node *node) {
    const auto &outputs = node->outputs();
    return !outputs.empty() && std::all_of(outputs.begin(), outputs.end(), only_decides) &&
           !changes_anything(node->blocks()[0]) && !changes_anything(node->blocks()[1]);
}

// The line of the code where a node is, as it was written where the file tells that.
std::string line_of(const Node *node) {
    const auto &saved = node->sourceRange();
    std::string text = saved.findSourceRangeThatGenerated().value_or(saved).text().str();
    text = text.substr(0, text.find('\n'));
    const size_t most = 60;
    return text.size() > most ? text.substr(0, most) + "…" : text;
}

void look(const Block *block, const Flow &flow, std::vector<std::string> &found) {
    for (const auto *node : block->nodes()) {
        if (node->kind() == c10::prim::If) {
            if (const auto known = flow.taken(node)) {
                look(node->blocks()[*known], flow, found);
                continue;
            }
            const bool errs = raises(node->blocks()[0]) || raises(node->blocks()[1]);
            if (flow.reaches(node->input(0)) && !errs && !is_part_of_a_condition(node)) found.push_back(line_of(node));
        } else if (node->kind() == c10::prim::Loop) {
            const auto *body = node->blocks()[0];
            if (flow.reaches(node->input(0)) || flow.reaches(node->input(1)) || flow.reaches(body->outputs()[0])) {
                found.push_back(line_of(node));
            }
        } else if (node->kind() == c10::prim::CallMethod || node->kind() == c10::prim::CallFunction ||
                   node->kind() == c10::prim::fork) {
            // What it runs is not in the graph.
            found.push_back(line_of(node));
        }
        for (const auto *inner : node->blocks()) look(inner, flow, found);
    }
}

}  // namespace

std::optional<c10::IValue> settled(const Value *value, const torch::jit::Module &module,
                                   const std::set<std::string> &changing) {
    const auto *node = value->node();
    if (auto constant = torch::jit::toIValue(value)) return constant;
    if (node->kind() == c10::prim::GetAttr) {
        if (changing.count(node->s(c10::attr::name)) != 0) return std::nullopt;
        const bool own = node->input()->node()->kind() == c10::prim::Param;
        const auto object = own ? std::optional<c10::IValue>(module._ivalue()) : settled(node->input(), module, changing);
        if (!object || !object->isObject()) return std::nullopt;
        return object->toObject()->getAttr(node->s(c10::attr::name));
    }
    if (node->kind() == c10::prim::If) {
        const auto condition = settled(node->input(0), module, changing);
        if (!condition || !condition->isBool()) return std::nullopt;
        return settled(node->blocks()[condition->toBool() ? 0 : 1]->outputs()[value->offset()], module, changing);
    }
    if (node->kind() == c10::aten::__not__) {
        const auto given = settled(node->input(0), module, changing);
        if (given && given->isBool()) return c10::IValue(!given->toBool());
    }
    return std::nullopt;
}

}  // namespace relevo_torch

using namespace relevo_torch;

relevo_message relevo_torch_branches(const Program *program, const size_t *axes, const size_t *ranks,
                                     relevo_each_text each, void *context) {
    return guarded([&] {
        const auto graph = inlined(program->module, program->method);
        std::vector<std::string> found;
        look(graph->block(), Flow(*graph, *program, axes, ranks), found);
        for (const auto &line : found) tell(each, context, line);
    });
}
