/* The reader of model files under libFuzzer: a file with any content is refused, or ranks without a fault.
 *
 * The length and the checksum in the head are made right again, so that the content behind them is reached. */
#include "../../src/tilewise/capi/include/tilewise.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* libFuzzer calls it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size); // NOLINT(misc-use-internal-linkage)

enum { HEAD = 24, MOST = 8 };

/* Return the CRC-32 of bytes, as zlib computes it. */
static uint32_t crc32_of(const uint8_t *data, size_t size)
{
    uint32_t crc = 0xffffffffU;
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320U : 0);
    }
    return ~crc;
}

/* Ask a model for everything that it answers. */
static void use(const tilewise_model *model)
{
    static const tilewise_problem PROBLEMS[] = {
        {sizeof(tilewise_problem), TILEWISE_GEMM, {.gemm = {512, 1024, 256, "rcr"}}},
        {sizeof(tilewise_problem), TILEWISE_GEMM, {.gemm = {1, INT64_MAX, 3, "ccr"}}},
        {sizeof(tilewise_problem), TILEWISE_CONV, {.conv = {8, 64, 64, 1, 28, 28, 3, 3, 1, 1,
                                                            1, 1,  1,  1, 1,  1,  1, 0, 1, "NHWGC"}}},
        {sizeof(tilewise_problem), TILEWISE_CONV, {.conv = {INT64_MAX, 96, 96, 96, 1, 1, 1, 1, 2, 2,
                                                            0,         0,  1,  1,  4, 2, 1, 1, 1, "NGCHW"}}},
    };
    char name[256];
    int32_t kernels[MOST];
    double scores[MOST];
    tilewise_prediction predicted[MOST];
    for (size_t i = 0; i < sizeof PROBLEMS / sizeof *PROBLEMS; i++) {
        (void)tilewise_is_supported(model, &PROBLEMS[i]);
        (void)tilewise_select_kernel(model, &PROBLEMS[i], name, sizeof name);
        const int n = tilewise_rank(model, &PROBLEMS[i], MOST, kernels, scores);
        for (int k = 0; k < n && k < MOST; k++)
            if (kernels[k] < 0 || kernels[k] >= tilewise_kernel_count(model))
                abort();
        (void)tilewise_predict(model, &PROBLEMS[i], MOST, kernels, predicted);
    }
    for (int k = 0; k < tilewise_kernel_count(model) && k < MOST; k++)
        (void)tilewise_kernel_name(model, k, name, sizeof name);
    if (strlen(tilewise_target(model)) > 256 || strlen(tilewise_export_json(model)) == 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    tilewise_model *model = NULL;
    uint8_t *file = malloc(size + 1);
    const int memory = memfd_create("model", 0);
    if (!file || memory < 0)
        abort();
    memcpy(file, data, size);
    if (size >= HEAD) {
        const uint64_t length = size;
        memcpy(file + 16, &length, sizeof length);
        const uint32_t crc = crc32_of(file + 16, size - 16);
        memcpy(file + 12, &crc, sizeof crc);
    }
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", memory);
    if (write(memory, file, size) != (ssize_t)size)
        abort();
    if (tilewise_open(path, &model) == TILEWISE_OK)
        use(model);
    else if (model || !*tilewise_last_error())
        abort();
    tilewise_close(model);
    (void)close(memory);
    free(file);
    return 0;
}
