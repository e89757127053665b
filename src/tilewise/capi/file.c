/* Reading a model file, which tilewise/capi/file.py writes: nothing in it is believed before it is checked. */
#include "model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "model files are little-endian, and read as they are"
#endif

enum { VERSION = 2, HEADER = 24, MOST_BYTES = 1 << 28, MOST_SLOTS = 1 << 24 };

typedef struct {
    const uint8_t *at, *end;
    const char *path;
    int failed;
} reader;

typedef struct {
    const void *data;
    int32_t count;
} array;

static int damaged(reader *r, const char *what)
{
    if (!r->failed)
        r->failed = tw_fail(TILEWISE_BAD_FILE, "%s: %s; export the model again", r->path, what);
    return r->failed;
}

/* The next section: its tag, bytes of an item, items (uint64), then these, filled up to a multiple of 8 bytes. */
static array take(reader *r, const char *tag, uint32_t item)
{
    const array none = {"", 0};
    char what[64];
    snprintf(what, sizeof what, "section '%s' is missing or damaged", tag);
    uint32_t seen;
    uint64_t count;
    if (r->failed)
        return none;
    if (r->end - r->at < 16 || memcmp(r->at, tag, 4)) {
        damaged(r, what);
        return none;
    }
    memcpy(&seen, r->at + 4, sizeof seen);
    memcpy(&count, r->at + 8, sizeof count);
    uint64_t left = (uint64_t)(r->end - r->at) - 16;
    if (seen != item || count > left / item || (count * item + 7) / 8 * 8 > left) {
        damaged(r, what);
        return none;
    }
    array found = {r->at + 16, (int32_t)count};
    r->at += 16 + (count * item + 7) / 8 * 8;
    return found;
}

static void expect(reader *r, int holds, const char *what)
{
    if (!holds)
        damaged(r, what);
}

static int all_numbers(array a)
{
    const double *x = a.data;
    int all = 1;
    for (int32_t i = 0; i < a.count; i++)
        all &= isfinite(x[i]) != 0;
    return all;
}

/* `count` texts, each with its \0, none of them empty; into `texts`. */
static void split(reader *r, array a, int32_t count, const char **texts)
{
    const char *text = a.data, *end = text + a.count;
    if (r->failed)
        return;
    expect(r, a.count > 0 && end[-1] == 0, "a text does not end");
    for (int32_t i = 0; i < count && !r->failed; i++) {
        expect(r, text < end && *text, "a text is missing");
        if (!r->failed)
            texts[i] = text, text += strlen(text) + 1;
    }
    expect(r, text == end, "too many texts");
}

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

static void read_outputs(reader *r, const char *tag, tw_outputs *outputs)
{
    array a = take(r, tag, sizeof(tw_output));
    if (r->failed)
        return;
    outputs->at = malloc((a.count + 1) * sizeof *outputs->at);
    if (!outputs->at) {
        r->failed = tw_fail(TILEWISE_NO_MEMORY, "out of memory");
        return;
    }
    memcpy(outputs->at, a.data, a.count * sizeof *outputs->at);
    outputs->count = a.count;
}

static void read_classes(reader *r, tw_ranker *ranker, int32_t n_classes)
{
    array a = take(r, "clas", 4);
    expect(r, a.count == (int64_t)n_classes * ranker->n_kernels, "partitions of another length");
    ranker->classes = r->failed ? NULL : calloc((size_t)n_classes + 1, sizeof *ranker->classes);
    ranker->n_classes = ranker->classes ? n_classes : 0;
    int failed = !ranker->classes;
    for (int32_t i = 0; i < ranker->n_classes; i++)
        failed |= tw_classes_set(&ranker->classes[i], (const int32_t *)a.data + (size_t)i * ranker->n_kernels,
                                 ranker->n_kernels);
    if (failed && !r->failed)
        r->failed = tw_fail(TILEWISE_NO_MEMORY, "out of memory");
}

static void read_program(reader *r, tw_ranker *ranker, int32_t n_inputs, int32_t n_slots)
{
    array constants = take(r, "cons", sizeof(tw_slot)), steps = take(r, "step", sizeof(tw_step)),
          index = take(r, "indx", 4);
    expect(r, n_inputs >= 0 && n_inputs <= TW_MOST_INPUTS && n_slots <= MOST_SLOTS && constants.count <= n_slots,
           "the program's size is impossible");
    if (!r->failed)
        ranker->program = tw_program_new(n_inputs, constants.data, constants.count, steps.data, steps.count, index.data,
                                         index.count, n_slots, TW_LIBM);
    expect(r, ranker->program != NULL, "a step of the program reaches outside");
}

static void read_forest(reader *r, tw_ranker *ranker, int32_t n_features)
{
    array roots = take(r, "root", 8), feature = take(r, "feat", 8), threshold = take(r, "thre", 8),
          children = take(r, "chil", 16), missing = take(r, "miss", 1), left = take(r, "left", 1),
          value = take(r, "valu", 8);
    int32_t n = feature.count;
    expect(r, threshold.count == n && children.count == n && missing.count == n && left.count == n && value.count == n,
           "the trees' lists differ in length");
    expect(r, all_numbers(value), "a tree's value is no number");
    if (!r->failed)
        ranker->scores = tw_forest_new(roots.count, roots.data, n, feature.data, threshold.data, children.data,
                                       missing.data, left.data, value.data, n_features);
    expect(r, ranker->scores != NULL, "nodes that form no trees");
}

static void read_estimate(reader *r, tw_ranker *ranker, int32_t n_costs, int32_t n_drivers)
{
    tw_outputs single = {0};
    tw_limits limits = {0};
    read_outputs(r, "sing", &single);
    array most = take(r, "limi", 8), programs = take(r, "prog", 8), factors = take(r, "fact", 8),
          centre = take(r, "cent", 8), scale = take(r, "scal", 8), weights = take(r, "weig", 8);
    expect(r, single.count == 2 && most.count == 4 && n_costs >= 0 && n_drivers >= 0 &&
                  n_costs + (int64_t)n_drivers <= TW_MOST_TERMS, "the estimate's size is impossible");
    int64_t rows = (int64_t)programs.count + 1, columns = 1 + 2 * ((int64_t)n_costs + n_drivers);
    expect(r, factors.count == rows * n_costs && centre.count == n_costs && scale.count == n_costs &&
                  weights.count == ranker->n_kernels * rows * columns, "the estimate's lists differ in length");
    expect(r, all_numbers(most) && all_numbers(factors) && all_numbers(centre) && all_numbers(scale) && all_numbers(weights),
           "a weight of the estimate is no number");
    if (!r->failed) {
        memcpy(&limits, most.data, sizeof limits);
        ranker->program_class = single.at[0], ranker->log_work = single.at[1];
        ranker->estimate = tw_estimate_new(programs.count, n_costs, n_drivers, ranker->n_kernels, limits, programs.data,
                                           factors.data, centre.data, scale.data, weights.data);
    }
    expect(r, ranker->estimate != NULL, "the estimate is impossible");
    free(single.at);
}

static void read_ranker(reader *r, tilewise_model *m)
{
    /* kernels, inputs, slots, partitions, features, costs, drivers, whether there is an estimate, shortlist */
    array head = take(r, "head", 4);
    const int32_t *n = head.data;
    expect(r, head.count == 9, "the head is of another length");
    if (r->failed)
        return;
    expect(r, n[0] >= 1 && n[0] <= TW_MOST_KERNELS, "an impossible number of kernels");
    expect(r, n[3] >= 0 && n[3] <= MOST_SLOTS, "an impossible number of partitions");
    expect(r, n[1] == (m->op == TILEWISE_GEMM ? 4 : TW_MOST_INPUTS), "a program for other columns than the op's");
    m->ranker = r->failed ? NULL : calloc(1, sizeof *m->ranker);
    m->names = r->failed ? NULL : calloc(n[0], sizeof *m->names);
    if (!m->ranker || !m->names) {
        r->failed = r->failed ? r->failed : tw_fail(TILEWISE_NO_MEMORY, "out of memory");
        return;
    }
    tw_ranker *ranker = m->ranker;
    ranker->n_kernels = n[0], ranker->words = (n[0] + 63) / 64, ranker->shortlist = n[8];
    split(r, take(r, "name", 1), n[0], m->names);
    read_classes(r, ranker, n[3]);
    read_program(r, ranker, n[1], n[2]);
    read_outputs(r, "rule", &ranker->rules);
    read_outputs(r, "outs", &ranker->features);
    read_outputs(r, "cost", &ranker->costs);
    read_outputs(r, "driv", &ranker->drivers);
    read_forest(r, ranker, n[4]);
    if (n[7])
        read_estimate(r, ranker, n[5], n[6]);
    if (!r->failed)
        expect(r, !tw_ranker_check(ranker), "its parts do not fit together");
}

static uint32_t crc32_of(const uint8_t *data, size_t size)
{
    uint32_t table[256], crc = 0xffffffffu;
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++)
            table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320u : 0);
    }
    for (size_t i = 0; i < size; i++)
        crc = crc >> 8 ^ table[(crc ^ data[i]) & 0xff];
    return ~crc;
}

static int read_bytes(const char *path, uint8_t **bytes, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return tw_fail(TILEWISE_BAD_FILE, "%s: %s", path, strerror(errno));
    size_t room = 1 << 16, held = 0, more = 1;
    uint8_t *data = malloc(room);
    while (data && (more = fread(data + held, 1, room - held, file))) {
        held += more;
        if (held == room) {
            uint8_t *larger = room < MOST_BYTES ? realloc(data, room *= 2) : NULL;
            if (!larger)
                free(data);
            data = larger;
        }
    }
    int failed = ferror(file);
    fclose(file);
    *bytes = data, *size = held;
    if (!data)
        return held >= MOST_BYTES ? tw_fail(TILEWISE_BAD_FILE, "%s: too large for a model file", path)
                                  : tw_fail(TILEWISE_NO_MEMORY, "out of memory");
    return failed ? tw_fail(TILEWISE_BAD_FILE, "%s: cannot be read", path) : TILEWISE_OK;
}

int tw_file_read(const char *path, tilewise_model *m)
{
    uint8_t *bytes = NULL;
    size_t size = 0;
    int failed = read_bytes(path, &bytes, &size);
    m->file = bytes;
    if (failed)
        return failed;
    uint32_t version, crc;
    uint64_t length;
    if (size < HEADER || memcmp(bytes, "TILEWISE", 8))
        return tw_fail(TILEWISE_BAD_FILE, "%s: no model file of tilewise", path);
    memcpy(&version, bytes + 8, sizeof version);
    memcpy(&crc, bytes + 12, sizeof crc);
    memcpy(&length, bytes + 16, sizeof length);
    if (version != VERSION)
        return tw_fail(TILEWISE_BAD_FILE, "%s: a file of version %u, this library reads %d; export the model again",
                       path, version, VERSION);
    if (length != size || crc != crc32_of(bytes + 16, size - 16))
        return tw_fail(TILEWISE_BAD_FILE, "%s: cut off or damaged; export the model again", path);
    reader r = {bytes + HEADER, bytes + size, path, 0};
    read_target(&r, m);
    array json = take(&r, "json", 1), codes = take(&r, "code", 8);
    split(&r, json, 1, &m->json);
    expect(&r, codes.count == TW_LAYOUTS, "codes of another number of layouts");
    if (!r.failed)
        memcpy(m->layouts, codes.data, sizeof m->layouts);
    read_ranker(&r, m);
    expect(&r, r.failed || r.at == r.end, "it goes on after its end");
    return r.failed;
}
