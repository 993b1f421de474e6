// The form of an attribute that holds memory, and the tensors that it is handed over as.

#include "program.h"

namespace relevo_torch {

namespace {

using c10::IValue;

// The parts of a tuple or list.
std::vector<IValue> parts_of(const IValue &value) {
    return value.isTuple() ? value.toTupleRef().elements().vec() : value.toListRef().vec();
}

bool fits(const Form &form, const IValue &value) {
    switch (form.kind) {
        case Form::TENSOR:
            return value.isTensor() && value.toTensor().defined() && value.toTensor().sizes() == form.like.sizes() &&
                   value.toTensor().scalar_type() == form.like.scalar_type();
        case Form::INT: return value.isInt();
        case Form::DOUBLE: return value.isDouble();
        case Form::BOOL: return value.isBool();
        case Form::OPTIONAL: return value.isNone() || fits(form.parts[0], value);
        default: break;
    }
    if (form.kind == Form::TUPLE ? !value.isTuple() : !value.isList()) return false;
    const auto parts = parts_of(value);
    return parts.size() == form.parts.size() && std::equal(form.parts.begin(), form.parts.end(), parts.begin(), fits);
}

// As it is handed over: actors are counted by an axis, which a scalar lacks.
at::Tensor with_axis(const at::Tensor &tensor) { return tensor.dim() == 0 ? tensor.reshape({1}) : tensor; }

// Hands over the zeros of what is not there.
void spread_nothing(const Form &form, std::vector<at::Tensor> &tensors) {
    if (form.kind == Form::OPTIONAL) tensors.push_back(at::zeros({1}, at::kBool));
    if (form.like.defined()) tensors.push_back(at::zeros_like(with_axis(form.like)));
    for (const auto &part : form.parts) spread_nothing(part, tensors);
}

}  // namespace

Form form_of(const std::string &name, const c10::TypePtr &type, const IValue &value) {
    Form form;
    form.type = type;
    if (const auto optional = type->cast<c10::OptionalType>()) {
        form.kind = Form::OPTIONAL;
        form.parts.push_back(form_of(name, optional->getElementType(), value));
    } else if (value.isTensor() && value.toTensor().defined()) {
        form.kind = Form::TENSOR;
        form.like = value.toTensor().detach();
    } else if (value.isInt()) {
        form.kind = Form::INT;
        form.like = at::zeros({1}, at::kLong);
    } else if (value.isDouble()) {
        form.kind = Form::DOUBLE;
        form.like = at::zeros({1}, at::kDouble);
    } else if (value.isBool()) {
        form.kind = Form::BOOL;
        form.like = at::zeros({1}, at::kBool);
    } else if ((value.isTuple() && type->cast<c10::TupleType>()) || (value.isList() && type->cast<c10::ListType>())) {
        form.kind = value.isTuple() ? Form::TUPLE : Form::LIST;
        const auto inner = type->containedTypes();
        const auto parts = parts_of(value);
        for (size_t index = 0; index < parts.size(); ++index) {
            const auto part = name + "." + std::to_string(index);
            form.parts.push_back(form_of(part, value.isTuple() ? inner.at(index) : inner.at(0), parts[index]));
        }
    } else {
        TORCH_CHECK(false, "its code may change the attribute `", name, "`, which is a ", value.tagKind(),
                    ", not made of tensors and numbers: the memory of one actor cannot be told from another's");
    }
    return form;
}

void name_leaves(const Form &form, const std::string &name, std::vector<std::string> &names) {
    if (form.kind == Form::OPTIONAL) {
        names.push_back(name + ".is_set");
        name_leaves(form.parts[0], name, names);
        return;
    }
    if (form.like.defined()) names.push_back(name);
    for (size_t index = 0; index < form.parts.size(); ++index) {
        name_leaves(form.parts[index], name + "." + std::to_string(index), names);
    }
}

void spread(const std::string &name, const Form &form, const IValue &value, std::vector<at::Tensor> &tensors) {
    TORCH_CHECK(fits(form, value), "the attribute `", name, "` changed its form or size: an actor's memory must keep it");
    switch (form.kind) {
        case Form::TENSOR: tensors.push_back(with_axis(value.toTensor())); return;
        case Form::INT: tensors.push_back(at::full({1}, value.toInt(), at::kLong)); return;
        case Form::DOUBLE: tensors.push_back(at::full({1}, value.toDouble(), at::kDouble)); return;
        case Form::BOOL: tensors.push_back(at::full({1}, value.toBool(), at::kBool)); return;
        case Form::OPTIONAL:
            if (value.isNone()) {
                spread_nothing(form, tensors);
            } else {
                tensors.push_back(at::ones({1}, at::kBool));
                spread(name, form.parts[0], value, tensors);
            }
            return;
        case Form::TUPLE:
        case Form::LIST: break;
    }
    const auto parts = parts_of(value);
    for (size_t index = 0; index < parts.size(); ++index) spread(name, form.parts[index], parts[index], tensors);
}

IValue gathered(const Form &form, const std::vector<at::Tensor> &tensors, size_t &at) {
    switch (form.kind) {
        case Form::TENSOR: return tensors.at(at++).reshape(form.like.sizes());
        case Form::INT: return tensors.at(at++).item<int64_t>();
        case Form::DOUBLE: return tensors.at(at++).item<double>();
        case Form::BOOL: return tensors.at(at++).item<bool>();
        case Form::OPTIONAL: {
            const bool is_set = tensors.at(at++).item<bool>();
            auto held = gathered(form.parts[0], tensors, at);
            return is_set ? held : IValue();
        }
        case Form::TUPLE:
        case Form::LIST: break;
    }
    std::vector<IValue> parts;
    for (const auto &part : form.parts) parts.push_back(gathered(part, tensors, at));
    if (form.kind == Form::TUPLE) {
        return c10::ivalue::Tuple::createNamed(std::move(parts), form.type);
    }
    c10::impl::GenericList list(form.type->expectRef<c10::ListType>().getElementType());
    for (auto &part : parts) list.push_back(std::move(part));
    return list;
}

}  // namespace relevo_torch
