/* The reader of model files. Every number is checked before use, because a file may be damaged or hostile. */
#include "model_file.h"
#include "error.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "model files are little-endian, and read as they are"
#endif

enum { VERSION = 4, FIRST_WITH_EXTRAS = 4, OLDEST_VERSION = 2, HEADER = 24, MAX_BYTES = 1 << 28, MAX_SLOTS = 1 << 24 };

typedef struct {
    const uint8_t *at, *end;
    const char *path;
    int failed;
} reader;

typedef struct {
    const void *data;
    int32_t count;
} array;

/* Set the error of a damaged file, unless an error was set before. */
static void damaged(reader *r, const char *reason)
{
    if (!r->failed) {
        tw_set_error(TILEWISE_BAD_FILE, "%s: %s; export the model again", r->path, reason);
        r->failed = TILEWISE_BAD_FILE;
    }
}

/* Return the next section, empty after an error. A section has its tag, the bytes of an item (uint32), the number
 * of items (uint64) and the items, padded to a multiple of 8 bytes. */
static array take(reader *r, const char *tag, uint32_t item)
{
    const array none = {"", 0};
    char reason[64];
    (void)snprintf(reason, sizeof reason, "section '%s' is missing or damaged", tag);
    uint32_t item_bytes;
    uint64_t count;
    if (r->failed)
        return none;
    if (r->end - r->at < 16 || memcmp(r->at, tag, 4) != 0) {
        damaged(r, reason);
        return none;
    }
    memcpy(&item_bytes, r->at + 4, sizeof item_bytes);
    memcpy(&count, r->at + 8, sizeof count);
    uint64_t left = (uint64_t)(r->end - r->at) - 16;
    if (item_bytes != item || count > left / item || (count * item + 7) / 8 * 8 > left) {
        damaged(r, reason);
        return none;
    }
    array found = {r->at + 16, (int32_t)count};
    r->at += 16 + (count * item + 7) / 8 * 8;
    return found;
}

/* Mark the file as damaged if a condition does not hold. */
static void expect(reader *r, int holds, const char *reason)
{
    if (!holds)
        damaged(r, reason);
}

/* Return 1 if all doubles are finite. */
static int all_numbers(array a)
{
    const double *x = a.data;
    int all = 1;
    for (int32_t i = 0; i < a.count; i++)
        all &= isfinite(x[i]) != 0;
    return all;
}

/* Write pointers to `count` non-empty, zero-terminated texts into `texts`; they belong to the file. */
static void split(reader *r, array a, int32_t count, const char **texts)
{
    const char *text = a.data, *end = text + a.count;
    if (r->failed)
        return;
    expect(r, a.count > 0 && end[-1] == 0, "a text lacks its terminating zero");
    for (int32_t i = 0; i < count && !r->failed; i++) {
        expect(r, text < end && *text, "a text is missing");
        if (!r->failed)
            texts[i] = text, text += strlen(text) + 1;
    }
    expect(r, text == end, "too many texts");
}

/* Read op, variant, dtype and arch. */
static void read_target(reader *r, tilewise_model *m)
{
    const char *parts[4];
    split(r, take(r, "targ", 1), 4, parts); /* op, variant, dtype, arch */
    if (r->failed)
        return;
    m->op = !strcmp(parts[0], "gemm") ? TILEWISE_GEMM : !strcmp(parts[0], "grouped_conv") ? TILEWISE_CONV : 0;
    m->variant = parts[1], m->dtype = parts[2];
    int n = snprintf(m->target, sizeof m->target, "%s_%s_%s_%s", parts[0], parts[1], parts[2], parts[3]);
    expect(r, tw_direction(m->op, m->variant) >= 0 && n < (int)sizeof m->target, "the target is unknown");
}

/* Read the places of results; the model owns the copy. */
static void read_outputs(reader *r, const char *tag, tw_outputs *outputs)
{
    array a = take(r, tag, sizeof(tw_output));
    if (r->failed)
        return;
    outputs->at = malloc((a.count + 1) * sizeof *outputs->at);
    if (!outputs->at) {
        r->failed = tw_set_error(TILEWISE_NO_MEMORY, "out of memory");
        return;
    }
    memcpy(outputs->at, a.data, a.count * sizeof *outputs->at);
    outputs->count = a.count;
}

/* Read the partitions of the kernels. */
static void read_classes(reader *r, tw_ranker *ranker, int32_t n_classes)
{
    array a = take(r, "clas", 4);
    expect(r, a.count == (int64_t)n_classes * ranker->n_kernels, "the partitions have the wrong length");
    ranker->classes = r->failed ? NULL : calloc((size_t)n_classes + 1, sizeof *ranker->classes);
    ranker->n_classes = ranker->classes ? n_classes : 0;
    int failed = !ranker->classes;
    for (int32_t i = 0; i < ranker->n_classes; i++)
        failed |= tw_classes_set(&ranker->classes[i], (const int32_t *)a.data + (size_t)i * ranker->n_kernels,
                                 ranker->n_kernels);
    if (failed && !r->failed)
        r->failed = tw_set_error(TILEWISE_NO_MEMORY, "out of memory");
}

/* Read the bytecode. */
static void read_bytecode(reader *r, tw_ranker *ranker, int32_t n_inputs, int32_t n_slots)
{
    array constants = take(r, "cons", sizeof(tw_slot)), instructions = take(r, "step", sizeof(tw_instruction)),
          index = take(r, "indx", 4);
    expect(r, n_inputs >= 0 && n_inputs <= TW_MAX_INPUTS && n_slots <= MAX_SLOTS && constants.count <= n_slots,
           "the size of the bytecode is out of range");
    if (!r->failed)
        ranker->bytecode = tw_bytecode_new(n_inputs, constants.data, constants.count, instructions.data,
                                           instructions.count, index.data, index.count, n_slots, TW_LIBM);
    expect(r, ranker->bytecode != NULL, "an instruction of the bytecode is invalid");
}

/* Return the next trees, which the caller frees, or NULL after an error. */
static tw_forest *read_forest(reader *r, int32_t n_features)
{
    tw_forest *forest = NULL;
    array roots = take(r, "root", 8), feature = take(r, "feat", 8), threshold = take(r, "thre", 8),
          children = take(r, "chil", 16), missing = take(r, "miss", 1), left = take(r, "left", 1),
          value = take(r, "valu", 8);
    int32_t n = feature.count;
    expect(r, threshold.count == n && children.count == n && missing.count == n && left.count == n && value.count == n,
           "the arrays of the trees differ in length");
    expect(r, all_numbers(value), "leaf values must be finite");
    if (!r->failed)
        forest = tw_forest_new(roots.count, roots.data, n, feature.data, threshold.data, children.data, missing.data,
                               left.data, value.data, n_features);
    expect(r, forest != NULL, "the nodes do not form trees, or exceed the limits of the core");
    return forest;
}

/* Read the cost model. */
static void read_cost_model(reader *r, tw_ranker *ranker, int32_t n_costs, int32_t n_drivers)
{
    tw_outputs single = {0};
    tw_limits limits = {0};
    read_outputs(r, "sing", &single);
    array most = take(r, "limi", 8), binaries = take(r, "prog", 8), factors = take(r, "fact", 8),
          centre = take(r, "cent", 8), scale = take(r, "scal", 8), weights = take(r, "weig", 8);
    expect(r,
           single.count == 2 && most.count == 4 && n_costs >= 0 && n_drivers >= 0 &&
               n_costs + (int64_t)n_drivers <= TW_MAX_TERMS,
           "the cost model has an invalid size");
    int64_t rows = (int64_t)binaries.count + 1, columns = 1 + 2 * ((int64_t)n_costs + n_drivers);
    expect(r,
           factors.count == rows * n_costs && centre.count == n_costs && scale.count == n_costs &&
               weights.count == ranker->n_kernels * rows * columns,
           "the arrays of the cost model differ in length");
    expect(r,
           all_numbers(most) && all_numbers(factors) && all_numbers(centre) && all_numbers(scale) &&
               all_numbers(weights),
           "the numbers of the cost model must be finite");
    if (!r->failed) {
        memcpy(&limits, most.data, sizeof limits);
        ranker->binary_class = single.at[0], ranker->log_work = single.at[1];
        ranker->cost_model = tw_cost_model_new(binaries.count, n_costs, n_drivers, ranker->n_kernels, limits,
                                               binaries.data, factors.data, centre.data, scale.data, weights.data);
    }
    expect(r, ranker->cost_model != NULL, "the cost model has an invalid size");
    free(single.at);
}

/* Read the sizes and then all parts of a ranker into `*place`, which the model owns, and check that they are
 * consistent. The first ranker of a file comes with the kernels' names; others rank the same kernels. */
static void read_ranker(reader *r, tilewise_model *m, tw_ranker **place)
{
    /* kernels, inputs, slots, partitions, features, costs, drivers, 1 if there is a cost model, shortlist; since
     * version 3 the features of the scale model (-1 without one), and 1 if scores are log(1 + TFLOPS) */
    array head = take(r, "head", 4);
    const int32_t *n = head.data;
    expect(r, head.count == (m->predicts ? 11 : 9), "the head has the wrong length");
    if (r->failed)
        return;
    expect(r, n[0] >= 1 && n[0] <= TW_MAX_KERNELS, "the number of kernels is out of range");
    expect(r, n[3] >= 0 && n[3] <= MAX_SLOTS, "the number of partitions is out of range");
    m->lacks_layout = m->op == TILEWISE_CONV && n[1] == TW_SIZES;
    expect(r, m->lacks_layout || n[1] == (m->op == TILEWISE_GEMM ? 4 : TW_MAX_INPUTS),
           "the bytecode has the wrong number of inputs for the op");
    const int is_first = place == &m->ranker;
    expect(r, is_first || n[0] == m->ranker->n_kernels, "additional trees are of other kernels");
    *place = r->failed ? NULL : calloc(1, sizeof **place);
    if (is_first)
        m->names = r->failed ? NULL : (const char **)calloc(n[0], sizeof *m->names);
    if (!*place || !m->names) {
        r->failed = r->failed ? r->failed : tw_set_error(TILEWISE_NO_MEMORY, "out of memory");
        return;
    }
    tw_ranker *ranker = *place;
    ranker->n_kernels = n[0], ranker->words = (n[0] + 63) / 64, ranker->shortlist = n[8];
    if (is_first)
        split(r, take(r, "name", 1), n[0], m->names);
    read_classes(r, ranker, n[3]);
    read_bytecode(r, ranker, n[1], n[2]);
    read_outputs(r, "rule", &ranker->rules);
    read_outputs(r, "outs", &ranker->features);
    read_outputs(r, "cost", &ranker->costs);
    read_outputs(r, "driv", &ranker->drivers);
    ranker->scores = read_forest(r, n[4]);
    if (n[7])
        read_cost_model(r, ranker, n[5], n[6]);
    if (m->predicts && n[9] >= 0) {
        read_outputs(r, "prob", &ranker->problem);
        ranker->scale = read_forest(r, n[9]);
    }
    if (is_first)
        m->is_log1p = m->predicts && n[10] == 1;
    if (!r->failed)
        expect(r, !tw_ranker_check(ranker), "its parts are inconsistent");
}

/* Read the trees of additional labels. */
static void read_extras(reader *r, tilewise_model *m)
{
    array labels = take(r, "xtra", 1);
    const char *text = labels.data, *end = text + labels.count;
    expect(r, labels.count > 0 && end[-1] == 0, "a label lacks its terminating zero");
    for (; !r->failed && text < end; text += strlen(text) + 1) {
        tw_ranker **place = !strcmp(text, "latency") ? &m->latency : !strcmp(text, "bandwidth") ? &m->bandwidth : NULL;
        expect(r, place && !*place, "a label of additional trees is unknown or repeated");
        if (!r->failed)
            read_ranker(r, m, place);
    }
}

/* Return the CRC-32 of bytes, as zlib computes it. */
static uint32_t crc32_of(const uint8_t *data, size_t size)
{
    uint32_t table[256], crc = 0xffffffffU;
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++)
            table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320U : 0);
    }
    for (size_t i = 0; i < size; i++)
        crc = crc >> 8 ^ table[(crc ^ data[i]) & 0xff];
    return ~crc;
}

/* Read a whole file into `*bytes`, which the caller frees also after an error. Return TILEWISE_OK or an error. */
static int read_bytes(const char *path, uint8_t **bytes, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return tw_set_error(TILEWISE_BAD_FILE, "%s: %s", path, strerror(errno));
    size_t capacity = 1 << 16, held = 0;
    uint8_t *data = malloc(capacity);
    while (data) {
        held += fread(data + held, 1, capacity - held, file);
        if (held < capacity) /* the end of the file, or an error */
            break;
        uint8_t *larger = capacity < MAX_BYTES ? realloc(data, capacity *= 2) : NULL;
        if (!larger)
            free(data);
        data = larger;
    }
    int failed = ferror(file);
    (void)fclose(file);
    *bytes = data, *size = held;
    if (!data)
        return held >= MAX_BYTES ? tw_set_error(TILEWISE_BAD_FILE, "%s: larger than any model file", path)
                                 : tw_set_error(TILEWISE_NO_MEMORY, "out of memory");
    return failed ? tw_set_error(TILEWISE_BAD_FILE, "%s: cannot be read", path) : TILEWISE_OK;
}

int tw_model_file_read(const char *path, tilewise_model *m)
{
    uint8_t *bytes = NULL;
    size_t size = 0;
    int failed = read_bytes(path, &bytes, &size);
    m->file = bytes;
    if (failed)
        return failed;
    uint32_t version, crc;
    uint64_t length;
    if (size < HEADER || memcmp(bytes, "TILEWISE", 8) != 0)
        return tw_set_error(TILEWISE_BAD_FILE, "%s: not a model file of tilewise", path);
    memcpy(&version, bytes + 8, sizeof version);
    memcpy(&crc, bytes + 12, sizeof crc);
    memcpy(&length, bytes + 16, sizeof length);
    if (version < OLDEST_VERSION || version > VERSION)
        return tw_set_error(TILEWISE_BAD_FILE,
                            "%s: the file has version %u, this library reads versions %d to %d; export the model again",
                            path, version, OLDEST_VERSION, VERSION);
    if (length != size || crc != crc32_of(bytes + 16, size - 16))
        return tw_set_error(TILEWISE_BAD_FILE, "%s: cut off or damaged; export the model again", path);
    m->predicts = version > OLDEST_VERSION;
    reader r = {bytes + HEADER, bytes + size, path, 0};
    read_target(&r, m);
    array json = take(&r, "json", 1), codes = take(&r, "code", 8);
    split(&r, json, 1, &m->json);
    expect(&r, codes.count == TW_LAYOUTS, "the number of layout codes is wrong");
    if (!r.failed)
        memcpy(m->layouts, codes.data, sizeof m->layouts);
    read_ranker(&r, m, &m->ranker);
    if (version >= FIRST_WITH_EXTRAS && !r.failed)
        read_extras(&r, m);
    expect(&r, r.failed || r.at == r.end, "bytes follow the last section");
    return r.failed;
}
