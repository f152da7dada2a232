// The versions of libraries with which a program may run.
#include "llmc/base/build_id.h"
#include "test/testing.h"

TEST_CASE("a library is of the major version of its header", "[build_id]") {
    const auto error = [](size_t built, size_t loaded) {
        return error_of([&] { check_library_version("cuDNN", built, loaded, "nvidia-cudnn-cu13"); });
    };
    for (const size_t loaded : {91900, 91902, 91002, 92801}) CHECK(error(91901, loaded) == "");
    CHECK(error(91900, 80907) ==
          "2: cuDNN 8.9.7 is loaded, and this program was built for 9.19.0: pip install "
          "'nvidia-cudnn-cu13>=9.19,<10', put that first in LD_LIBRARY_PATH, or build again with the library that is "
          "there");
    CHECK(error(91900, 100000) != "");
    CHECK(error(130000, 120900) != "");
}

TEST_CASE("packages of NVIDIA's libraries are those of the CUDA in use", "[build_id]") {
    CHECK(nvidia_package("cudnn", 12) + " " + nvidia_package("cublas", 12) == "nvidia-cudnn-cu12 nvidia-cublas-cu12");
    CHECK(nvidia_package("nccl", 13) + " " + nvidia_package("cublas", 13) == "nvidia-nccl-cu13 nvidia-cublas");
}

TEST_CASE("a library that is older than its header is said to be", "[build_id]") {
    CHECK(library_version_text(130102) == "13.1.2");
    CHECK(library_text("cuDNN", 91900, 92801) == "cuDNN 9.28.1");
    CHECK(library_text("cuDNN", 91902, 91900) == "cuDNN 9.19.0");  // a patch
    CHECK(library_text("cuDNN", 92801, 91900) == "cuDNN 9.19.0 (built for 9.28.1)");
}
