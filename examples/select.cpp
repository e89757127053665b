// Selects a kernel for a matrix product and shows the next best. Build and run, from the repository's root:
//
//   cmake -S src/tilewise/capi -B build/cmake && cmake --build build/cmake
//   python -m tilewise.capi export models/gemm_universal_bf16_sm90 gemm.twm
//   c++ -Isrc/tilewise/capi/include examples/select.cpp -Lbuild/cmake -ltilewise -Wl,-rpath,build/cmake -o build/select
//   build/select gemm.twm 4096 4096 1024
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "tilewise.h"

using Model = std::unique_ptr<tilewise_model, decltype(&tilewise_close)>;

static int checked(int code)
{
    if (code < 0)
        throw std::runtime_error(tilewise_last_error());
    return code;
}

static Model open_model(const char *path)
{
    tilewise_model *model = nullptr;
    checked(tilewise_open(path, &model));
    return Model(model, tilewise_close);
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        std::fprintf(stderr, "usage: select FILE M N K\n");
        return 2;
    }
    try {
        const Model model = open_model(argv[1]);
        tilewise_problem problem = {};
        problem.size = sizeof problem;
        problem.op = TILEWISE_GEMM;
        problem.of.gemm.m = std::atoll(argv[2]);
        problem.of.gemm.n = std::atoll(argv[3]);
        problem.of.gemm.k = std::atoll(argv[4]);
        std::strcpy(problem.of.gemm.layout, "rcr");
        std::array<int32_t, 3> best{};
        const int found = checked(tilewise_rank(model.get(), &problem, best.size(), best.data(), nullptr));
        std::printf("%s: %d kernels\n", tilewise_target(model.get()), tilewise_kernel_count(model.get()));
        for (int i = 0; i < found; i++) {
            std::array<char, 256> name{};
            checked(tilewise_kernel_name(model.get(), best[i], name.data(), name.size()));
            std::printf("%d. %s\n", i + 1, name.data());
        }
    } catch (const std::exception &error) {
        std::fprintf(stderr, "select: %s\n", error.what());
        return 1;
    }
}
