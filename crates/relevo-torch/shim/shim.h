// What tch lacks of TorchScript: modules from bytes, signatures, attributes, copies, and calls without detours.
//
// Functions that can fail return a message, which the caller frees by relevo_torch_free; null means that all went well.
#pragma once

#include <cstddef>
#include <cstdint>

#include "relevo_model_backend.h"

namespace relevo_torch {
struct Program;
struct Session;
}  // namespace relevo_torch

extern "C" {
using relevo_torch::Program;
using relevo_torch::Session;

typedef char *relevo_message;

// Called for each of some texts, or tensors; types are numbers of c10::ScalarType.
typedef void (*relevo_each_text)(void *context, const char *data, size_t size);
typedef void (*relevo_each_tensor)(void *context, const char *name, size_t size, int32_t type, const int64_t *sizes,
                                   size_t ndim);

void relevo_torch_free(relevo_message message);

// Loads a TorchScript archive. The device is one that torch knows; calls use so many threads.
relevo_message relevo_torch_load(const void *data, size_t size, const char *device, int threads, Program **program);
void relevo_torch_release(Program *program);
// The text that `relevo.export` put into the archive about the inputs, where there is one.
void relevo_torch_declared(const Program *program, relevo_each_text each, void *context);

// Methods; `plain` leaves those that can be called without arguments.
void relevo_torch_methods(const Program *program, bool plain, relevo_each_text each, void *context);
// Parameters and buffers, in the file's order.
void relevo_torch_tensors(const Program *program, relevo_each_tensor each, void *context);
// The number that a method without arguments gives.
relevo_message relevo_torch_number(const Program *program, const char *method, int64_t *number);

// Chooses the method to call and lists its inputs. Optional tensors are inputs where their argument is named in `optional`.
// Keys of dictionaries, and lengths of lists, are those that the code asks for.
relevo_message relevo_torch_prepare(Program *program, const char *method, const relevo_text *optional,
                                    size_t optional_count, relevo_each_text each_input, void *context);
// From now on the arguments in `empty` are None for rows whose part of input number `input` begins with a mark (what NaN of its
// size is no result of a calculation, see forward.cpp). `input_axes` says where each input counts rows, `output_axes` where
// outputs do, -1 where they do not. With no arguments, nothing is None any more.
relevo_message relevo_torch_start_empty(Program *program, const relevo_text *empty, size_t empty_count, size_t input,
                                        const int64_t *input_axes, const int64_t *output_axes, size_t output_count);
// Whether the prepared method's code may change the module.
bool relevo_torch_remembers(const Program *program);
// Optional arguments of the method that would hold tensors.
relevo_message relevo_torch_optional_arguments(const Program *program, const char *method, relevo_each_text each,
                                               void *context);
// Weights of the module, and constants of the prepared method, that hold NaN: their names, and how many numbers do. Memory
// may hold it.
relevo_message relevo_torch_weights_with_nan(const Program *program, relevo_each_text each, void *context);
// Operators of the prepared method that draw random numbers.
relevo_message relevo_torch_random_operators(const Program *program, relevo_each_text each, void *context);
// Lines of the prepared method's code that decide for a whole batch by what is in it, or by how many rows it has. Of each
// input, `axes` has the axis that counts rows, and `ranks` the number of axes.
relevo_message relevo_torch_branches(const Program *program, const size_t *axes, const size_t *ranks,
                                     relevo_each_text each, void *context);

// Finds out what forward changes, or may change: the module's memory, as tensors. There are `passes` times `count` inputs,
// the usual ones first; others may fail. `reset` names a method that puts the memory back, or is null.
relevo_message relevo_torch_find_state(Program *program, const relevo_tensor *inputs, size_t count, size_t passes,
                                       const char *reset);
// The tensors of the memory, in order.
void relevo_torch_state(const Program *program, relevo_each_tensor each, void *context);
// Copies the initial value of one of them, row-major; `size` must be its bytes.
relevo_message relevo_torch_initial(const Program *program, size_t index, void *bytes, size_t size);

// One caller's session. `apart` gives it a copy of everything, for calls that may change what is not known yet.
relevo_message relevo_torch_session(const Program *program, bool apart, Session **session);
void relevo_torch_release_session(Session *session);

// Calls the method on inputs (then states), and tells of the outputs without copying them out.
relevo_message relevo_torch_probe(Session *session, const relevo_tensor *inputs, size_t count, relevo_each_tensor each,
                                  void *context);
// The value of an output of the last probe, as float64; `count` must be its number of elements.
relevo_message relevo_torch_probed(const Session *session, size_t output, double *values, size_t count);

// As relevo_backend.forward.
relevo_message relevo_torch_forward(Session *session, const relevo_tensor *inputs, size_t count, const size_t *wanted,
                                    const relevo_tensor *outputs, size_t wanted_count, relevo_allocate allocate,
                                    void *context);
}
