/*
A CUDA driver that is there and does nothing: test/cuda/cudnn_plans.cpp is run with it as libcuda.so.1, so that cuDNN loads
and plans kernels on a machine without a GPU. Nothing can be computed with it: cuInit says that there is no device.
*/
int cuInit(void) { return 34; /* CUDA_ERROR_STUB_LIBRARY */ }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuDeviceGetCount(int* count) { return *count = 0; }
int cuGetErrorString(int error, const char** text) { return *text = error ? "no driver" : "", 0; }

/* Handles that must not be null. */
static int something;
int cuLibraryLoadData(void** library) { return *library = &something, 0; }
int cuLibraryGetKernel(void** kernel) { return *kernel = &something, 0; }
int cuKernelGetAttribute(int* value) { return *value = 0; }

/* What is only looked up, or called with nothing expected from it. */
#define SUCCEEDS(name) \
    int name(void) { return 0; }
SUCCEEDS(cuCtxGetCurrent)
SUCCEEDS(cuCtxGetLimit)
SUCCEEDS(cuCtxPopCurrent)
SUCCEEDS(cuCtxPopCurrent_v2)
SUCCEEDS(cuCtxPushCurrent)
SUCCEEDS(cuCtxPushCurrent_v2)
SUCCEEDS(cuDeviceGet)
SUCCEEDS(cuFuncGetAttribute)
SUCCEEDS(cuFuncSetAttribute)
SUCCEEDS(cuFuncSetCacheConfig)
SUCCEEDS(cuGetErrorName)
SUCCEEDS(cuKernelGetFunction)
SUCCEEDS(cuKernelSetAttribute)
SUCCEEDS(cuLaunchCooperativeKernel)
SUCCEEDS(cuLaunchKernel)
SUCCEEDS(cuLaunchKernelEx)
SUCCEEDS(cuLibraryGetGlobal)
SUCCEEDS(cuLibraryLoadFromFile)
SUCCEEDS(cuLibraryUnload)
SUCCEEDS(cuLinkAddData)
SUCCEEDS(cuLinkAddData_v2)
SUCCEEDS(cuLinkComplete)
SUCCEEDS(cuLinkCreate)
SUCCEEDS(cuLinkCreate_v2)
SUCCEEDS(cuLinkDestroy)
SUCCEEDS(cuMemsetD8Async)
SUCCEEDS(cuModuleGetFunction)
SUCCEEDS(cuModuleGetGlobal_v2)
SUCCEEDS(cuModuleLoadData)
SUCCEEDS(cuModuleLoadDataEx)
SUCCEEDS(cuModuleUnload)
SUCCEEDS(cuOccupancyMaxActiveClusters)
SUCCEEDS(cuOccupancyMaxPotentialClusterSize)
SUCCEEDS(cuStreamGetCtx)
SUCCEEDS(cuTensorMapEncodeIm2col)
SUCCEEDS(cuTensorMapEncodeTiled)
