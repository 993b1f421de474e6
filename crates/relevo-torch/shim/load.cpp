// Loading, and what a module consists of.

#include "program.h"

#include <cstring>

#include <caffe2/serialize/read_adapter_interface.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/serialization/import.h>

namespace relevo_torch {

namespace {

// The name of the extra file in which `relevo.export` declares the inputs.
const char *const DECLARED = "relevo.json";

// Bytes as the file that torch reads.
class Memory : public caffe2::serialize::ReadAdapterInterface {
   public:
    Memory(const void *data, size_t size) : data_(static_cast<const char *>(data)), size_(size) {}

    size_t size() const override { return size_; }

    size_t read(uint64_t position, void *buffer, size_t count, const char *) const override {
        if (position >= size_) return 0;
        count = std::min<size_t>(count, size_ - position);
        std::memcpy(buffer, data_ + position, count);
        return count;
    }

   private:
    const char *data_;
    size_t size_;
};

}  // namespace

std::string explain(const std::exception &error) {
    const auto *own = dynamic_cast<const c10::Error *>(&error);
    std::string text = own != nullptr ? own->what_without_backtrace() : error.what();
    // An error inside a module comes behind a trace of its code; what happened stands in the last line.
    if (text.find("Traceback of TorchScript") != std::string::npos) {
        const auto end = text.find_last_not_of("\n ");
        text.erase(end == std::string::npos ? 0 : end + 1);
        const auto begin = text.find_last_of('\n');
        if (begin != std::string::npos) text.erase(0, begin + 1);
    }
    return text;
}

relevo_message message(const std::string &text) {
    auto *copy = static_cast<char *>(std::malloc(text.size() + 1));
    if (copy != nullptr) std::memcpy(copy, text.c_str(), text.size() + 1);
    return copy;
}

std::shared_ptr<torch::jit::Graph> inlined(const torch::jit::Module &module, const std::string &method) {
    auto graph = torch::jit::toGraphFunction(module.get_method(method).function()).graph()->copy();
    torch::jit::Inline(*graph);
    return graph;
}

}  // namespace relevo_torch

using namespace relevo_torch;

void relevo_torch_free(relevo_message message) { std::free(message); }

relevo_message relevo_torch_load(const void *data, size_t size, const char *device, int threads, Program **program) {
    return guarded([&] {
        auto loaded = std::make_unique<Program>();
        loaded->device = c10::Device(device);
        loaded->threads = threads;
        torch::jit::ExtraFilesMap extra = {{DECLARED, ""}};
        loaded->module = torch::jit::load(std::make_shared<Memory>(data, size), loaded->device, extra);
        loaded->declared = extra[DECLARED];
        loaded->module.eval();
        bool others = false;
        for (auto parameter : loaded->module.parameters()) {
            parameter.requires_grad_(false);
            const bool narrow = parameter.scalar_type() == c10::kBFloat16;
            loaded->narrows |= narrow;
            others |= parameter.is_floating_point() && !narrow;
        }
        loaded->narrows &= !others;
        *program = loaded.release();
    });
}

void relevo_torch_release(Program *program) { delete program; }

void relevo_torch_declared(const Program *program, relevo_each_text each, void *context) {
    if (!program->declared.empty()) tell(each, context, program->declared);
}

void relevo_torch_methods(const Program *program, bool plain, relevo_each_text each, void *context) {
    for (const auto &method : program->module.get_methods()) {
        const auto &arguments = method.function().getSchema().arguments();
        const auto needed = [](const c10::Argument &argument) { return !argument.default_value(); };
        // The first is the module itself.
        if (plain && std::any_of(arguments.begin() + 1, arguments.end(), needed)) continue;
        tell(each, context, method.name());
    }
}

void relevo_torch_tensors(const Program *program, relevo_each_tensor each, void *context) {
    for (const auto &attribute : program->module.named_attributes()) {
        if (attribute.value.isTensor() && attribute.value.toTensor().defined()) {
            tell(each, context, attribute.name, attribute.value.toTensor());
        }
    }
}

relevo_message relevo_torch_number(const Program *program, const char *method, int64_t *number) {
    return guarded([&] {
        const c10::InferenceMode inference;
        torch::jit::Stack stack;
        const auto given = program->module.get_method(method)(stack);
        *number = given.isTensor() ? given.toTensor().item<int64_t>() : given.toInt();
    });
}
