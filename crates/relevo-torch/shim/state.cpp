// What forward changes of the module itself.

#include "program.h"

#include <unordered_map>

namespace relevo_torch {

namespace {

using c10::IValue;
using c10::ivalue::Object;

// An attribute and where it is.
struct Attribute {
    std::string name;
    c10::TypePtr type;
    std::vector<size_t> path;
    IValue value;
};

void collect(const Object &object, const std::string &prefix, std::vector<size_t> &path, std::vector<Attribute> &found) {
    const auto type = object.type();
    for (size_t slot = 0; slot < type->numAttributes(); ++slot) {
        const auto &value = object.getSlot(slot);
        const auto name = prefix + type->getAttributeName(slot);
        path.push_back(slot);
        if (value.isObject()) {
            collect(*value.toObject(), name + ".", path, found);
        } else {
            found.push_back({name, type->getAttribute(slot), path, value});
        }
        path.pop_back();
    }
}

std::vector<Attribute> attributes(const torch::jit::Module &module) {
    std::vector<Attribute> found;
    std::vector<size_t> path;
    collect(*module._ivalue(), "", path, found);
    return found;
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

relevo_message relevo_torch_find_state(Program *program, const relevo_tensor *inputs, size_t count, const char *reset) {
    return guarded([&] {
        const c10::InferenceMode inference;
        program->states.clear();
        const auto changed = program->module.deepcopy();
        const auto before = attributes(program->module);
        std::vector<bool> differs(before.size());
        std::vector<Attribute> middle;
        // Twice: what was put in place by the first pass shows in the second.
        for (int pass = 0; pass < 2; ++pass) {
            std::vector<at::Tensor> leaves;
            for (size_t index = 0; index < count; ++index) {
                leaves.push_back(borrowed(inputs[index]).clone().to(program->device));
            }
            call(changed, *program, leaves);
            const auto after = attributes(changed);
            for (size_t index = 0; index < before.size(); ++index) {
                if (!same(before[index].value, after[index].value)) differs[index] = true;
            }
            // What it holds is its own: the next pass may write to it.
            if (pass == 0) middle = attributes(changed.deepcopy());
        }
        const auto after = attributes(changed);
        auto start = program->module.deepcopy();
        if (reset != nullptr) start.get_method(reset)({});
        const auto initial = attributes(start);
        for (size_t index = 0; index < before.size(); ++index) {
            if (!differs[index]) continue;
            const auto &attribute = before[index];
            // What is None at the start shows what it is made of after a pass, or before one that takes it away.
            const auto *shown = &after[index].value;
            if (shown->isNone()) shown = &before[index].value;
            if (shown->isNone()) shown = &middle[index].value;
            State state{attribute.name, attribute.path, form_of(attribute.name, attribute.type, *shown), {}, {}};
            name_leaves(state.form, state.name, state.names);
            std::vector<at::Tensor> ends;
            for (const auto &passed : {middle[index].value, after[index].value}) spread(state.name, state.form, passed, ends);
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
