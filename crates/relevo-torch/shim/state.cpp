// What forward changes of the module itself.

#include "program.h"

#include <unordered_map>

#include <ATen/MemoryOverlap.h>

namespace relevo_torch {

namespace {

using c10::IValue;
using c10::ivalue::Object;

void collect(const Object &object, const std::string &prefix, std::vector<size_t> &path, std::vector<Attribute> &found) {
    const auto type = object.type();
    for (size_t slot = 0; slot < type->numAttributes(); ++slot) {
        const auto &value = object.getSlot(slot);
        const auto name = prefix + type->getAttributeName(slot);
        path.push_back(slot);
        if (value.isObject()) {
            collect(*value.toObject(), name + ".", path, found);
        } else {
            found.push_back({name, type->getAttribute(slot), path, &object, value});
        }
        path.pop_back();
    }
}

bool same(const IValue &one, const IValue &other) {
    if (one.isTensor() && other.isTensor()) {
        const auto &a = one.toTensor(), &b = other.toTensor();
        if (!a.defined() || !b.defined()) return a.defined() == b.defined();
        if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
        if (a.is_floating_point()) return at::equal(a.nan_to_num(), b.nan_to_num());
        return at::equal(a, b);
    }
    if (one.tagKind() != other.tagKind()) return false;
    if (one.isInt()) return one.toInt() == other.toInt();
    if (one.isDouble()) return one.toDouble() == other.toDouble();
    if (one.isBool()) return one.toBool() == other.toBool();
    if (one.isString()) return one.toStringRef() == other.toStringRef();
    if (one.isTuple() || one.isList()) {
        const auto elements = [](const IValue &value) {
            return value.isTuple() ? value.toTupleRef().elements().vec() : value.toListRef().vec();
        };
        const auto a = elements(one), b = elements(other);
        return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), same);
    }
    if (one.isGenericDict()) {
        const auto a = one.toGenericDict(), b = other.toGenericDict();
        if (a.size() != b.size()) return false;
        for (const auto &entry : a) {
            const auto found = b.find(entry.key());
            if (found == b.end() || !same(entry.value(), found->value())) return false;
        }
    }
    return true;
}

void collect_tensors(const IValue &value, std::vector<at::Tensor> &found) {
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().has_storage()) {
        found.push_back(value.toTensor());
    } else if (value.isTuple()) {
        for (const auto &part : value.toTupleRef().elements()) collect_tensors(part, found);
    } else if (value.isList()) {
        for (const IValue &part : value.toListRef()) collect_tensors(part, found);
    } else if (value.isGenericDict()) {
        for (const auto &entry : value.toGenericDict()) collect_tensors(entry.value(), found);
    }
}

bool overlap(const IValue &one, const IValue &other) {
    std::vector<at::Tensor> ours, theirs;
    collect_tensors(one, ours);
    collect_tensors(other, theirs);
    for (const auto &a : ours) {
        for (const auto &b : theirs) {
            if (a.is_alias_of(b) && at::get_overlap_status(a, b) != at::MemOverlapStatus::No) return true;
        }
    }
    return false;
}

// Fails where what is written to one attribute shows in another: each actor has copies, in which it would not.
void expect_apart(const std::vector<Attribute> &all, const std::set<std::string> &written) {
    for (const auto &one : all) {
        if (written.count(one.name) == 0) continue;
        for (const auto &other : all) {
            const bool is_the_same = one.object == other.object && one.path.back() == other.path.back();
            TORCH_CHECK(is_the_same || !overlap(one.value, other.value), "its code may write to the attribute `", one.name,
                        "`, whose numbers are also those of `", other.name,
                        "`: an actor's copies of them would come apart; keep only one of them, and make views of it in forward");
        }
    }
}

using Copies = std::unordered_map<const Object *, c10::intrusive_ptr<Object>>;

c10::intrusive_ptr<Object> copy_object(const c10::intrusive_ptr<Object> &object, Copies &copies) {
    const auto known = copies.find(object.get());
    if (known != copies.end()) return known->second;
    auto copy = object->copy();
    copies.emplace(object.get(), copy);
    for (size_t slot = 0; slot < copy->slots().size(); ++slot) {
        const auto &value = copy->getSlot(slot);
        if (value.isObject()) copy->setSlot(slot, copy_object(value.toObject(), copies));
    }
    return copy;
}

}  // namespace

std::vector<Attribute> attributes(const torch::jit::Module &module) {
    std::vector<Attribute> found;
    std::vector<size_t> path;
    collect(*module._ivalue(), "", path, found);
    return found;
}

torch::jit::Module copy_of(const torch::jit::Module &module) {
    Copies copies;
    return torch::jit::Module(copy_object(module._ivalue(), copies));
}

c10::ivalue::Object &holder(const torch::jit::Module &module, const std::vector<size_t> &path) {
    auto object = module._ivalue();
    for (size_t step = 0; step + 1 < path.size(); ++step) object = object->getSlot(path[step]).toObject();
    return *object;
}

}  // namespace relevo_torch

using namespace relevo_torch;

bool relevo_torch_remembers(const Program *program) { return !program->memory.attributes.empty(); }

relevo_message relevo_torch_find_state(Program *program, const relevo_tensor *inputs, size_t count, size_t passes,
                                       const char *reset) {
    return guarded([&] {
        const c10::InferenceMode inference;
        program->states.clear();
        TORCH_CHECK(!program->memory.constants,
                    "its code writes to a constant, which all actors would share, and a trace makes one of each tensor that "
                    "is no parameter or buffer: keep it by register_buffer, or let torch.jit.script take the module");
        const auto pass = [&](const torch::jit::Module &module, size_t number) {
            std::vector<at::Tensor> leaves;
            for (size_t index = number * count; index < (number + 1) * count; ++index) {
                const auto given = borrowed(inputs[index]).clone().to(program->device);
                const bool narrows = program->narrows && given.scalar_type() == c10::kFloat;
                leaves.push_back(narrows ? given.to(c10::kBFloat16) : given);
            }
            call(module, *program, leaves);
            return attributes(module);
        };
        const auto before = attributes(program->module);
        const auto changed = program->module.deepcopy();
        // Twice: what was put in place by the first pass shows in the second. What it holds is its own: the second pass may
        // write to it.
        pass(changed, 0);
        const auto middle = attributes(changed.deepcopy());
        std::vector<std::vector<Attribute>> shown = {pass(changed, 0), before, middle};
        std::vector<bool> changes(before.size());
        for (size_t index = 0; index < before.size(); ++index) {
            // What its code may change counts, though these passes did not.
            changes[index] = program->memory.attributes.count(before[index].name) != 0 ||
                             !same(before[index].value, middle[index].value) ||
                             !same(before[index].value, shown[0][index].value);
        }
        for (size_t number = 1; number < passes; ++number) {
            try {
                shown.push_back(pass(program->module.deepcopy(), number));
            } catch (const std::exception &) {
                // Not every module takes everything.
            }
        }
        auto start = program->module.deepcopy();
        if (reset != nullptr) start.get_method(reset)({});
        const auto initial = attributes(start);
        expect_apart(before, program->memory.in_place);
        expect_apart(initial, program->memory.in_place);
        expect_apart(shown[0], program->memory.in_place);
        for (size_t index = 0; index < before.size(); ++index) {
            if (!changes[index]) continue;
            const auto &attribute = before[index];
            // What is None at the start shows what it is made of after a pass, or before one that takes it away.
            const IValue *value = &attribute.value;
            for (const auto &own : shown) {
                value = &own[index].value;
                if (!value->isNone()) break;
            }
            TORCH_CHECK(!value->isNone(), "its code may set the attribute `", attribute.name,
                        "`, which is None at the start, and no pass that was tried shows what it will hold");
            State state{attribute.name, attribute.path, form_of(attribute.name, attribute.type, *value), {}, {}};
            name_leaves(state.form, state.name, state.names);
            std::vector<at::Tensor> ends;
            for (const auto &own : shown) {
                if (&own != &shown[1]) spread(state.name, state.form, own[index].value, ends);
            }
            spread(state.name, state.form, initial[index].value, state.initial);
            for (auto &tensor : state.initial) tensor = tensor.clone();
            program->states.push_back(std::move(state));
        }
    });
}

void relevo_torch_state(const Program *program, relevo_each_tensor each, void *context) {
    for (const auto &state : program->states) {
        for (size_t index = 0; index < state.names.size(); ++index) {
            tell(each, context, state.names[index], state.initial[index]);
        }
    }
}

relevo_message relevo_torch_initial(const Program *program, size_t index, void *bytes, size_t size) {
    return guarded([&] {
        const c10::InferenceMode inference;
        std::vector<at::Tensor> all;
        for (const auto &state : program->states) all.insert(all.end(), state.initial.begin(), state.initial.end());
        const auto tensor = all.at(index).contiguous().cpu();
        TORCH_CHECK(tensor.nbytes() == size, "a state of ", tensor.nbytes(), " bytes was to go into ", size);
        std::memcpy(bytes, tensor.const_data_ptr(), size);
    });
}
