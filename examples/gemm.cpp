// Selects kernels for matrix products with the C++ Registry, and computes one on the host. Build as select.cpp:
//
//   c++ -Isrc/tilewise/capi/include examples/gemm.cpp -Lbuild/cmake -ltilewise -Wl,-rpath,build/cmake -o build/gemm
//   build/gemm sm90 bf16 gemm.twm
#include <cstdint>
#include <cstdio>
#include <vector>

#include "tilewise.hpp"

int main(int argc, char **argv)
{
    if (argc != 4) {
        std::fprintf(stderr, "usage: gemm ARCH DTYPE MODEL_FILE\n");
        return 2;
    }
    try {
        tilewise::Registry registry(argv[1]);
        registry.load(argv[3]);
        for (const int64_t m : {1, 128, 4096}) {
            const tilewise::Problem problem = tilewise::gemm(m, 1536, 4096, argv[2]);
            std::printf("M=%lld: %s\n", static_cast<long long>(m), registry.select(problem).c_str());
            for (const tilewise::Prediction &p : registry.rank(problem, 3))
                std::printf("  %s %.1f TFLOPS %.4f ms\n", p.kernel_name.c_str(), p.tflops, p.latency_ms);
        }
        // bf16 1.0 is 0x3f80: a product of ones has K in every element, here 64 (0x4280)
        const tilewise::Problem small = tilewise::gemm(16, 16, 64, argv[2]);
        const std::vector<uint16_t> ones(16 * 64, 0x3f80);
        std::vector<uint16_t> result(16 * 16);
        registry.run(small, ones.data(), ones.data(), result.data());
        std::printf("reference: 0x%04x\n", result[0]);
    } catch (const tilewise::Error &error) {
        std::fprintf(stderr, "gemm: %s\n", error.what());
        return 1;
    }
}
