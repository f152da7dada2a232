# Finds compilers, headers and libraries. USE_X=auto uses X if it is found, 1 requires it, 0 does not use it.

# $(call dir_with,FILE PATTERN,FOLDERS): the first of FOLDERS that contains FILE
dir_with = $(firstword $(foreach d,$(2),$(if $(wildcard $(d)/$(1)),$(d))))

INCLUDE_DIRS := $(wildcard $(DEPS_DIR)/include) \
  $(shell $(CXX) -E -v -x c++ /dev/null 2>&1 >/dev/null | sed -n '/^.include </,/^End/s/^ //p')
CLI11_DIR   := $(call dir_with,CLI/CLI.hpp,$(INCLUDE_DIRS))
JSON_DIR    := $(call dir_with,nlohmann/json.hpp,$(INCLUDE_DIRS))
XXHASH_DIR  := $(call dir_with,xxhash.h,$(INCLUDE_DIRS))
CATCH2_DIR  := $(call dir_with,catch2/catch*.hpp,$(INCLUDE_DIRS))
# Version 2 is one header; version 3 (catch_all.hpp) comes with a library.
CATCH2_LIBS := $(if $(wildcard $(CATCH2_DIR)/catch2/catch_all.hpp),-lCatch2)
MISSING     := $(if $(CLI11_DIR),,CLI11) $(if $(JSON_DIR),,nlohmann-json) $(if $(XXHASH_DIR),,xxHash)

CXX_VERSION := $(shell $(CXX) --version 2>/dev/null | head -n 1)
ifneq ($(USE_OMP),0)
  HAVE_OMP := $(shell echo 'int main() {}' | $(CXX) -fopenmp -x c++ - -o /dev/null 2>/dev/null && echo 1)
endif

# A folder counts as CUDA only with both the compiler and its headers: /usr/local/bin/nvcc may be a wrapper script.
NVCC_PATH := $(shell command -v nvcc 2>/dev/null)
CUDA_DIRS := $(CUDA_HOME) $(CUDA_PATH) $(NVCC_PATH:%/bin/nvcc=%) /usr/local/cuda \
  $(lastword $(sort $(wildcard /usr/local/cuda-*))) /opt/cuda
CUDA_DIR  := $(foreach d,$(CUDA_DIRS),$(if $(wildcard $(d)/bin/nvcc),$(call dir_with,include/cuda_runtime.h,$(d))))
CUDA_DIR  := $(firstword $(CUDA_DIR))
# NVIDIA's libraries come with the toolkit, with the system, or as wheels: `pip install nvidia-cublas nvidia-cudnn-cu13`.
NVIDIA_WHEELS ?= $(wildcard $(shell python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))' 2>/dev/null)/nvidia)
# $(call library_in,NAME,FOLDERS): the path of the first libNAME.so or libNAME.so.VERSION
library_in = $(firstword $(foreach d,$(2),$(firstword $(wildcard $(d)/lib$(1).so) $(sort $(wildcard $(d)/lib$(1).so.*)))))
SYSTEM_LIBS  := $(wildcard /usr/lib/$(shell uname -m)-linux-gnu /usr/lib64 /usr/lib)
CUBLASLT_INC := $(call dir_with,cublasLt.h,$(CUDA_DIR:%=%/include) $(NVIDIA_WHEELS:%=%/cu13/include) $(INCLUDE_DIRS))
CUBLASLT_LIB := $(call library_in,cublasLt,$(CUDA_DIR:%=%/lib64) $(NVIDIA_WHEELS:%=%/cu13/lib) $(SYSTEM_LIBS))
CUDNN_DIR := $(call dir_with,cudnn.h,$(CUDNN_HOME:%=%/include) $(CUDA_DIR:%=%/include) $(NVIDIA_WHEELS:%=%/cudnn/include) $(INCLUDE_DIRS))
CUDNN_LIB := $(call library_in,cudnn,$(CUDNN_HOME:%=%/lib) $(CUDA_DIR:%=%/lib64) $(NVIDIA_WHEELS:%=%/cudnn/lib) $(SYSTEM_LIBS))
# What is missing of the minimum for a GPU build.
CUDA_MISSING := $(if $(CUDA_DIR),,nvcc with its headers (install the CUDA toolkit or set CUDA_HOME)) \
  $(if $(and $(CUBLASLT_INC),$(CUBLASLT_LIB)),,cuBLASLt (part of the toolkit or `pip install nvidia-cublas`))
HAVE_CUDA    := $(if $(strip $(CUDA_MISSING)),,$(CUDA_DIR))
HAVE_CUDNN   := $(if $(and $(HAVE_CUDA),$(CUDNN_DIR),$(CUDNN_LIB)),$(CUDNN_DIR))
VARIANT      ?= $(DEFAULT_VARIANT)
DEFAULT_VARIANT := $(if $(filter-out 0,$(USE_CUDA)),$(if $(HAVE_CUDA),cuda,cpu),cpu)
NCCL_DIR := $(call dir_with,nccl.h,$(NCCL_HOME:%=%/include) $(CUDA_DIR:%=%/include) $(NVIDIA_WHEELS:%=%/nccl/include) $(INCLUDE_DIRS))
NCCL_LIB := $(call library_in,nccl,$(NCCL_HOME:%=%/lib) $(CUDA_DIR:%=%/lib64) $(NVIDIA_WHEELS:%=%/nccl/lib) $(SYSTEM_LIBS))
HAVE_NCCL := $(if $(and $(HAVE_CUDA),$(NCCL_DIR),$(NCCL_LIB)),$(NCCL_DIR))
# MPI: in MPI_HOME, else in the folders that mpicxx uses, which match the mpirun of the same installation.
MPICXX_WORDS := $(if $(MPI_HOME),,$(shell mpicxx -show 2>/dev/null))
MPI_DIR  := $(call dir_with,mpi.h,$(MPI_HOME:%=%/include) $(patsubst -I%,%,$(filter -I%,$(MPICXX_WORDS))) \
  $(if $(MPI_HOME),,$(wildcard /usr/lib/*/openmpi/include) $(INCLUDE_DIRS)))
MPI_LIB  := $(call library_in,mpi,$(MPI_HOME:%=%/lib) $(MPI_HOME:%=%/lib64) $(patsubst -L%,%,$(filter -L%,$(MPICXX_WORDS))) \
  $(if $(MPI_HOME),,$(wildcard /usr/lib/*/openmpi/lib) $(SYSTEM_LIBS)))
HAVE_MPI := $(if $(and $(MPI_DIR),$(MPI_LIB)),$(MPI_DIR))

# $(call check,NAME,VALUE,FOUND,WHAT TO INSTALL): USE_NAME must be auto, 0 or 1; 1 needs FOUND
check = $(if $(filter auto 0 1,$(2)),,$(error USE_$(1)=$(2): expected auto, 0 or 1))$(strip \
  )$(if $(filter 1,$(2)),$(if $(3),,$(error USE_$(1)=1 but $(1) was not found: $(4))))
ifneq ($(filter-out help info clean format,$(or $(MAKECMDGOALS),all)),)
  $(call check,OMP,$(USE_OMP),$(HAVE_OMP),install libgomp1 or use g++)
  $(call check,CUDA,$(USE_CUDA),$(HAVE_CUDA),missing $(strip $(CUDA_MISSING)))
  $(call check,CUDNN,$(USE_CUDNN),$(HAVE_CUDNN),install libcudnn9-dev-cuda-13 or nvidia-cudnn-cu13 or set CUDNN_HOME)
  $(call check,NCCL,$(USE_NCCL),$(HAVE_NCCL),it needs CUDA and libnccl-dev or nvidia-nccl-cu13 or NCCL_HOME)
  $(call check,MPI,$(USE_MPI),$(HAVE_MPI),install libopenmpi-dev or set MPI_HOME)
endif
