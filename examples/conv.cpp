// Selects kernels for a convolution and its gradients with the C++ Registry. Build as select.cpp:
//
//   c++ -Isrc/tilewise/capi/include examples/conv.cpp -Lbuild/cmake -ltilewise -Wl,-rpath,build/cmake -o build/conv
//   build/conv sm90 bf16 forward.twm bwd_data.twm bwd_weight.twm
#include <cstdio>

#include "tilewise.hpp"

int main(int argc, char **argv)
{
    if (argc < 4) {
        std::fprintf(stderr, "usage: conv ARCH DTYPE MODEL_FILE ...\n");
        return 2;
    }
    try {
        tilewise::Registry registry(argv[1]);
        for (int i = 3; i < argc; i++)
            registry.load(argv[i]);
        tilewise_conv sizes = tilewise::conv_sizes();
        sizes.n = 32, sizes.c = sizes.k = 256, sizes.hi = sizes.wi = 14;
        sizes.y = sizes.x = 3, sizes.pad_h = sizes.pad_w = 1;
        for (const char *variant : {"forward", "bwd_data", "bwd_weight"}) {
            const tilewise::Problem problem = tilewise::conv(sizes, variant, argv[2]);
            const std::string kernel = registry.select(problem);
            std::printf("%s: %s\n", variant, kernel.c_str());
            if (!registry.is_supported(problem, kernel) || registry.is_supported(problem, "another"))
                return 1;
        }
    } catch (const tilewise::Error &error) {
        std::fprintf(stderr, "conv: %s\n", error.what());
        return 1;
    }
}
