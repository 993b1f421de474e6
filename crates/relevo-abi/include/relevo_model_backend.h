/* The table by which a model backend in another package joins Relevo.
 *
 * A backend hands out one `relevo_backend` in a PyCapsule named RELEVO_MODEL_BACKEND, returned by the function that an entry
 * point of the group `relevo.model_backends` names. docs/backends.md tells how to write one; crates/relevo-abi is the same
 * in Rust, with helpers.
 *
 * Fields are only ever appended. `size` is what the writer's compiler says of the struct, so the reader knows which fields
 * there are; `abi_version` rises when something else changes, and a table of another version is refused.
 */
#ifndef RELEVO_MODEL_BACKEND_H
#define RELEVO_MODEL_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RELEVO_MODEL_BACKEND "relevo.model_backend.v1"
#define RELEVO_ABI_VERSION 1u

/* UTF-8 without a terminator. `data` may be null where `size` is 0. */
typedef struct {
    const char *data;
    size_t size;
} relevo_text;

typedef struct {
    const uint8_t *data;
    size_t size;
} relevo_bytes;

/* DLPack's terms. Codes: 0 signed integer, 1 unsigned integer, 2 float, 6 bool. `lanes` is 1. */
typedef struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} relevo_dtype;

/* DLPack's terms. Kinds: 1 CPU, 2 CUDA, 8 Metal. */
typedef struct {
    int32_t kind;
    int32_t index;
} relevo_device;

/* DLPack's DLTensor. `strides` counts elements, and is null for row-major tensors without gaps. */
typedef struct {
    void *data;
    relevo_device device;
    int32_t ndim;
    relevo_dtype dtype;
    const int64_t *shape;
    const int64_t *strides;
    uint64_t byte_offset;
} relevo_tensor;

/* A dimension; `size` is -1 where it is known only when the model runs, and `name` may then name it. */
typedef struct {
    int64_t size;
    relevo_text name;
} relevo_dim;

typedef struct {
    relevo_text name;
    relevo_dtype dtype;
    const relevo_dim *dims;
    size_t ndim;
} relevo_tensor_spec;

/* An output that is an input of the next step. `initial` is one row at an episode's start; empty means zeros. */
typedef struct {
    size_t input;
    size_t output;
    relevo_bytes initial;
} relevo_state_link;

/* Values of relevo_description.batch: how many rows one forward pass takes. */
enum { RELEVO_BATCH_UNKNOWN = 0, RELEVO_BATCH_DYNAMIC = 1, RELEVO_BATCH_ONE = 2 };

/* What a model takes and gives. It belongs to the model. */
typedef struct {
    size_t size;
    const relevo_tensor_spec *inputs;
    size_t input_count;
    const relevo_tensor_spec *outputs;
    size_t output_count;
    const relevo_state_link *states;
    size_t state_count;
    relevo_text producer;
    relevo_text sha256;
    const relevo_text *random_ops;
    size_t random_op_count;
    const relevo_text *notes;
    size_t note_count;
    int32_t batch;
    relevo_text batch_reason;
    /* A device in whose memory inputs may be given to forward, beside that of the processor: where the model runs. A kind of 0
     * stands for none. Appended in version 1.2: a description that ends before it is that of a model that takes none. */
    relevo_device input_device;
    /* What relevo.export wrote into the file about its policy: the JSON of relevo.json; empty where it wrote nothing. Appended in
     * version 1.2: a description that ends before it is that of a file without. */
    relevo_text declared;
} relevo_description;

/* Where a model comes from: a file, or bytes that are in memory (`bytes.data` not null), which `path` then only names.
 * On Unix `path` holds the bytes of the path, which need not be UTF-8. */
typedef struct {
    size_t size;
    relevo_text path;
    relevo_bytes bytes;
} relevo_source;

/* The shape of one row of the input `name`. */
typedef struct {
    relevo_text name;
    const size_t *sizes;
    size_t count;
} relevo_row_shape;

typedef struct {
    size_t size;
    relevo_text device; /* "cpu", "cuda:0", "mps" */
    size_t threads;     /* of one forward pass, 1 or more */
    const relevo_row_shape *shapes;
    size_t shape_count;
    /* Inputs of which the user says that they are states. Appended in version 1.2. */
    const relevo_text *states;
    size_t state_count;
} relevo_options;

/* Which of Relevo's errors a failure becomes. */
enum {
    RELEVO_MODEL_LOAD = 1, /* the message is read behind "cannot load PATH: " */
    RELEVO_CONTRACT = 2,
    RELEVO_INFERENCE = 3,
    RELEVO_DEVICE_UNAVAILABLE = 4,
    RELEVO_CONFIG = 5
};

typedef struct {
    int32_t kind;
    relevo_text message;
} relevo_failure;

typedef struct relevo_model relevo_model;
typedef struct relevo_session relevo_session;

/* Memory for output number `position` of those asked for, of the given type and shape; null where there is none. It stays
 * until forward returns, and what is in it then is the output. */
typedef void *(*relevo_allocate)(void *context, size_t position, relevo_dtype dtype, const int64_t *shape, int32_t ndim);

/* Takes in one device of those that models might run on: its name, and why it cannot be used with what to do about it
 * behind the last "; ", or an empty text where it can. */
typedef void (*relevo_each_device)(void *context, relevo_text name, relevo_text fault);

/* No function may let an exception or a panic out. Those that can fail give null, or a failure that the caller hands to
 * release_failure. Models may be used by many threads at a time, a session by one. */
typedef struct {
    size_t size;
    uint32_t abi_version;
    void *context;       /* first argument of the next three, and of devices */
    relevo_text format;  /* "torchscript" */
    relevo_text version; /* for people: "0.1.0, torch 2.13.0" */

    /* Whether a file of this name is meant for this backend. */
    bool (*accepts)(void *context, relevo_text path);
    /* Whether a file that holds these bytes is one. */
    bool (*recognises)(void *context, relevo_bytes bytes);
    relevo_failure *(*load)(void *context, const relevo_source *source, const relevo_options *options, relevo_model **model);

    const relevo_description *(*describe)(const relevo_model *model);
    relevo_failure *(*session)(const relevo_model *model, relevo_session **session);

    /* One forward pass. `inputs` holds every input in the order of the description. `wanted` lists the outputs to compute;
     * outputs[i] receives output wanted[i]: into its memory where it has some (type and shape must then fit, else it is an
     * inference failure), otherwise into what `allocate` gives. Inputs must not be written to, nor kept. Each
     * lies in the processor's memory, or on the description's input_device; there it is complete, whatever stream reads it. The
     * function returns when nothing reads it any more. */
    relevo_failure *(*forward)(relevo_session *session, const relevo_tensor *inputs, size_t input_count,
                               const size_t *wanted, const relevo_tensor *outputs, size_t wanted_count,
                               relevo_allocate allocate, void *allocate_context);

    /* A session may outlive its model. */
    void (*release_session)(relevo_session *session);
    void (*release_model)(relevo_model *model);
    void (*release_failure)(relevo_failure *failure);

    /* Tells `each` of the devices; the texts need last no longer than that call. Appended in version 1.1: a table that ends
     * before it, or has null here, is that of a backend that runs on the CPU alone. */
    relevo_failure *(*devices)(void *context, relevo_each_device each, void *each_context);
} relevo_backend;

#ifdef __cplusplus
}
#endif

#endif
