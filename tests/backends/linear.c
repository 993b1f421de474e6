/* A model backend as small as they come, to be built by `cc -shared`: docs/backends.md explains it.
 *
 * A `.linear` file is text: "linear 2 3", then 2 * 3 weights, then 3 biases; y = x W + b. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "relevo_model_backend.h"

#define TEXT(literal) {literal, sizeof(literal) - 1}
#define MOST 64

/* A writer that knows less of the structs says so by their sizes. */
#ifndef SIZE
#define SIZE sizeof(relevo_backend)
#endif
#ifndef DESCRIPTION_SIZE
#define DESCRIPTION_SIZE sizeof(relevo_description)
#endif
#ifndef VERSION
#define VERSION RELEVO_ABI_VERSION
#endif

struct relevo_model {
    size_t inputs, outputs;
    float weights[MOST * MOST], biases[MOST];
    relevo_dim dims[4];
    relevo_tensor_spec specs[2];
    relevo_description description;
};

/* The weights of this model never change, so a session is the model, copied: it may outlive it. */
struct relevo_session {
    struct relevo_model model;
};

/* With GPU, models may run on "cuda:0" as well. Its memory is the processor's here, so that no machine needs one; inputs that came as
 * the device's are counted. */
#ifdef GPU
static const char gpu[] = "cuda:0";
#else
static const char gpu[] = "";
#endif
static size_t in_place;

size_t linear_in_place(void) { return in_place; }

static bool is(relevo_text text, const char *name) { return text.size == strlen(name) && memcmp(text.data, name, text.size) == 0; }

static relevo_failure *fail(int32_t kind, const char *message) {
    relevo_failure *failure = malloc(sizeof *failure);
    char *copy = malloc(strlen(message) + 1);
    strcpy(copy, message);
    failure->kind = kind;
    failure->message = (relevo_text){copy, strlen(message)};
    return failure;
}

static void release_failure(relevo_failure *failure) {
    free((char *)failure->message.data);
    free(failure);
}

static bool accepts(void *context, relevo_text path) {
    (void)context;
    return path.size > 7 && memcmp(path.data + path.size - 7, ".linear", 7) == 0;
}

static bool recognises(void *context, relevo_bytes bytes) {
    (void)context;
    return bytes.size > 7 && memcmp(bytes.data, "linear ", 7) == 0;
}

static const char *read_text(struct relevo_model *model, FILE *file) {
    if (fscanf(file, "linear %zu %zu", &model->inputs, &model->outputs) != 2) return "it does not begin with `linear IN OUT`";
    if (model->inputs < 1 || model->inputs > MOST || model->outputs < 1 || model->outputs > MOST) return "its sizes must lie between 1 and 64";
    for (size_t index = 0; index < model->inputs * model->outputs; ++index) {
        if (fscanf(file, "%f", &model->weights[index]) != 1) return "it ends within the weights; export it again";
    }
    for (size_t index = 0; index < model->outputs; ++index) {
        if (fscanf(file, "%f", &model->biases[index]) != 1) return "it ends within the biases; export it again";
    }
    return NULL;
}

static relevo_failure *load(void *context, const relevo_source *source, const relevo_options *options, relevo_model **made) {
    (void)context;
    const bool there = *gpu != 0 && is(options->device, gpu);
    if (!there && !is(options->device, "cpu")) {
        return fail(RELEVO_DEVICE_UNAVAILABLE, "linear models run on the cpu alone; load it with device=\"cpu\"");
    }
    FILE *file;
    char path[4096];
    if (source->bytes.data != NULL) {
        file = fmemopen((void *)source->bytes.data, source->bytes.size, "r");
    } else {
        if (source->path.size >= sizeof path) return fail(RELEVO_MODEL_LOAD, "its path is too long");
        memcpy(path, source->path.data, source->path.size);
        path[source->path.size] = 0;
        file = fopen(path, "r");
    }
    if (file == NULL) return fail(RELEVO_MODEL_LOAD, "it cannot be opened");
    struct relevo_model *model = calloc(1, sizeof *model);
    const char *fault = read_text(model, file);
    fclose(file);
    if (fault != NULL) {
        free(model);
        return fail(RELEVO_MODEL_LOAD, fault);
    }
    model->dims[0] = model->dims[2] = (relevo_dim){-1, TEXT("batch")};
    model->dims[1] = (relevo_dim){(int64_t)model->inputs, {NULL, 0}};
    model->dims[3] = (relevo_dim){(int64_t)model->outputs, {NULL, 0}};
    const relevo_dtype float32 = {2, 32, 1};
    model->specs[0] = (relevo_tensor_spec){TEXT("obs"), float32, &model->dims[0], 2};
    model->specs[1] = (relevo_tensor_spec){TEXT("logits"), float32, &model->dims[2], 2};
    static const relevo_text note = TEXT("written by hand");
    model->description = (relevo_description){
        .size = DESCRIPTION_SIZE,
        .inputs = &model->specs[0],
        .input_count = 1,
        .outputs = &model->specs[1],
        .output_count = 1,
        .producer = TEXT("a text editor"),
        .notes = &note,
        .note_count = 1,
        .input_device = there ? (relevo_device){2, 0} : (relevo_device){0, 0},
    };
    *made = model;
    return NULL;
}

static const relevo_description *describe(const relevo_model *model) { return &model->description; }

static relevo_failure *session(const relevo_model *model, relevo_session **made) {
    *made = malloc(sizeof **made);
    (*made)->model = *model;
    return NULL;
}

static relevo_failure *forward(relevo_session *session, const relevo_tensor *inputs, size_t input_count, const size_t *wanted,
                               const relevo_tensor *outputs, size_t wanted_count, relevo_allocate allocate, void *context) {
    (void)wanted;
    const struct relevo_model *model = &session->model;
    if (input_count != 1 || wanted_count != 1) return fail(RELEVO_CONTRACT, "one input and one output");
    in_place += inputs[0].device.kind == 2;
    const float *x = inputs[0].data;
    const int64_t rows = inputs[0].shape[0], shape[2] = {rows, (int64_t)model->outputs};
    float *y = outputs[0].data;
    if (y == NULL) y = allocate(context, 0, model->specs[1].dtype, shape, 2);
    if (y == NULL) return fail(RELEVO_INFERENCE, "out of memory");
    for (int64_t row = 0; row < rows; ++row) {
        if (x[row * model->inputs] == 1000) return fail(RELEVO_INFERENCE, "1000 is too much");
        for (size_t to = 0; to < model->outputs; ++to) {
            float sum = model->biases[to];
            for (size_t from = 0; from < model->inputs; ++from) sum += x[row * model->inputs + from] * model->weights[from * model->outputs + to];
            y[row * model->outputs + to] = sum;
        }
    }
    return NULL;
}

static void release_session(relevo_session *session) { free(session); }
static void release_model(relevo_model *model) { free(model); }

static relevo_failure *devices(void *context, relevo_each_device each, void *each_context) {
    (void)context;
    each(each_context, (relevo_text)TEXT("cpu"), (relevo_text){NULL, 0});
    const relevo_text fault = TEXT("linear models run on the cpu alone; wait");
    each(each_context, (relevo_text)TEXT("cuda:0"), *gpu != 0 ? (relevo_text){NULL, 0} : fault);
    return NULL;
}

static const relevo_backend table = {
    .size = SIZE,
    .abi_version = VERSION,
    .format = TEXT("linear"),
    .version = TEXT("0.1"),
    .accepts = accepts,
    .recognises = recognises,
    .load = load,
    .describe = describe,
    .session = session,
    .forward = forward,
    .release_session = release_session,
    .release_model = release_model,
    .release_failure = release_failure,
    .devices = devices,
};

const relevo_backend *linear_backend(void) { return &table; }
