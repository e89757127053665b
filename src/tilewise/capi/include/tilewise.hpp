// tilewise from C++17: a header-only layer over tilewise.h with the names of Python's Registry. See docs/c-api.md.
//
// Every failure throws tilewise::Error. A Registry may be used by any number of threads once its models are loaded.
#ifndef TILEWISE_PUBLIC_HPP
#define TILEWISE_PUBLIC_HPP

#include "tilewise.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tilewise
{

// A failed call, with the code of tilewise.h.
class Error : public std::runtime_error
{
  public:
    Error(int code, const std::string &message) : std::runtime_error(message), code_(code)
    {
    }
    int code() const
    {
        return code_;
    }

  private:
    int code_;
};

// Return a result of the C API that is not negative.
inline int checked(int code)
{
    if (code < 0)
        throw Error(code, tilewise_last_error());
    return code;
}

// A problem with the parts of its target that are not its dimensions.
struct Problem {
    tilewise_problem value = {};
    std::string variant, dtype;
};

// Return a matrix product; the layout is that of A, B and C.
inline Problem gemm(int64_t m, int64_t n, int64_t k, const std::string &dtype, const std::string &layout = "rcr")
{
    Problem problem;
    problem.variant = "universal", problem.dtype = dtype;
    problem.value.size = sizeof problem.value;
    problem.value.op = TILEWISE_GEMM;
    tilewise_gemm &sizes = problem.value.of.gemm;
    sizes.m = m, sizes.n = n, sizes.k = k;
    std::strncpy(sizes.layout, layout.c_str(), sizeof sizes.layout);
    return problem;
}

// Return sizes of a convolution with strides, dilations and depth of 1, no padding, channels last.
inline tilewise_conv conv_sizes()
{
    tilewise_conv sizes = {};
    sizes.g = sizes.stride_h = sizes.stride_w = sizes.dilation_h = sizes.dilation_w = 1;
    sizes.di = sizes.z = sizes.stride_d = sizes.dilation_d = 1;
    return sizes;
}

// Return a convolution: "forward", "bwd_data" or "bwd_weight".
inline Problem conv(const tilewise_conv &sizes, const std::string &variant, const std::string &dtype)
{
    Problem problem;
    problem.variant = variant, problem.dtype = dtype;
    problem.value.size = sizeof problem.value;
    problem.value.op = TILEWISE_CONV;
    problem.value.of.conv = sizes;
    return problem;
}

// A kernel of a ranking with its predicted figures.
struct Prediction {
    std::string kernel_name;
    double tflops, latency_ms, bandwidth_gb_s;
};

// One open model file.
class Model
{
  public:
    explicit Model(const std::string &path) : model_(nullptr, tilewise_close)
    {
        tilewise_model *opened = nullptr;
        checked(tilewise_open(path.c_str(), &opened));
        model_.reset(opened);
    }

    std::string target() const
    {
        return tilewise_target(model_.get());
    }
    int kernel_count() const
    {
        return checked(tilewise_kernel_count(model_.get()));
    }

    std::string kernel_name(int index) const
    {
        std::vector<char> name(256);
        int code;
        while ((code = tilewise_kernel_name(model_.get(), index, name.data(), name.size())) ==
               TILEWISE_BUFFER_TOO_SMALL)
            name.resize(2 * name.size());
        checked(code);
        return name.data();
    }

    // Return whether any kernel computes the problem, or the one of this name.
    bool is_supported(const Problem &problem, const std::string &kernel = "") const
    {
        if (kernel.empty())
            return checked(tilewise_is_supported(model_.get(), &problem.value)) == 1;
        for (int index : order(problem, kernel_count()))
            if (kernel_name(index) == kernel)
                return true;
        return false;
    }

    // Return the name of the kernel to launch.
    std::string select(const Problem &problem) const
    {
        const std::vector<int32_t> best = order(problem, 1);
        if (best.empty())
            throw Error(TILEWISE_NO_KERNEL, "no kernel of " + target() + " supports the problem");
        return kernel_name(best[0]);
    }

    // Return the supported kernels, best first, at most `most` of them; throw Error if `most` is negative.
    std::vector<Prediction> rank(const Problem &problem, int most) const
    {
        if (most < 0)
            throw Error(TILEWISE_BAD_ARGUMENT, "at most " + std::to_string(most) + " kernels is no number of kernels");
        std::vector<int32_t> kernels(most);
        std::vector<tilewise_prediction> figures(most);
        const int found = checked(tilewise_predict(model_.get(), &problem.value, most, kernels.data(), figures.data()));
        std::vector<Prediction> ranked;
        for (int i = 0; i < found; i++)
            ranked.push_back(
                {kernel_name(kernels[i]), figures[i].tflops, figures[i].latency_ms, figures[i].bandwidth_gb_s});
        return ranked;
    }

    // Compute the result with the reference on the host, as tilewise_run does. Return its time, not the kernel's, in
    // ms.
    float run(const Problem &problem, const void *a, const void *b, void *result) const
    {
        float time_ms = -1;
        checked(tilewise_run(model_.get(), &problem.value, a, b, result, &time_ms));
        return time_ms;
    }

  private:
    std::vector<int32_t> order(const Problem &problem, int most) const
    {
        std::vector<int32_t> kernels(most);
        kernels.resize(checked(tilewise_rank(model_.get(), &problem.value, most, kernels.data(), nullptr)));
        return kernels;
    }

    std::unique_ptr<tilewise_model, decltype(&tilewise_close)> model_;
};

// The models of one arch, over all ops, variants and dtypes that are loaded.
class Registry
{
  public:
    explicit Registry(std::string arch) : arch_(std::move(arch))
    {
    }

    // Load a model file of this arch; it replaces the one of the same target.
    void load(const std::string &path)
    {
        auto model = std::make_unique<Model>(path);
        const std::string target = model->target(), ending = "_" + arch_;
        if (target.size() < ending.size() || target.compare(target.size() - ending.size(), ending.size(), ending) != 0)
            throw Error(TILEWISE_BAD_ARGUMENT, path + " is a model of " + target + ", not of " + arch_);
        models_[target] = std::move(model);
    }

    // Return the model of a problem's target.
    const Model &model(const Problem &problem) const
    {
        const std::string op = problem.value.op == TILEWISE_GEMM ? "gemm" : "grouped_conv";
        const std::string target = op + "_" + problem.variant + "_" + problem.dtype + "_" + arch_;
        const auto found = models_.find(target);
        if (found == models_.end())
            throw Error(TILEWISE_NOT_READY, "no model of " + target + " is loaded");
        return *found->second;
    }

    bool is_supported(const Problem &problem, const std::string &kernel = "") const
    {
        return model(problem).is_supported(problem, kernel);
    }
    std::string select(const Problem &problem) const
    {
        return model(problem).select(problem);
    }
    std::vector<Prediction> rank(const Problem &problem, int most) const
    {
        return model(problem).rank(problem, most);
    }
    float run(const Problem &problem, const void *a, const void *b, void *result) const
    {
        return model(problem).run(problem, a, b, result);
    }

  private:
    std::string arch_;
    std::map<std::string, std::unique_ptr<Model>> models_;
};

} // namespace tilewise

#endif
