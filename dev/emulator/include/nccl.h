/*
The part of NCCL that Anvil calls, declared as NCCL declares it. dev/emulator/fake_nccl.cpp implements it.
*/
#pragma once
#include <cuda_runtime_api.h>
#include <cstddef>

#define NCCL_VERSION_CODE 22809
#define NCCL_VERSION(X, Y, Z) ((X) * 10000 + (Y) * 100 + (Z))
#define NCCL_UNIQUE_ID_BYTES 128

using ncclComm_t = struct ncclComm*;
struct ncclUniqueId {
    char internal[NCCL_UNIQUE_ID_BYTES];
};
enum ncclResult_t {
    ncclSuccess,
    ncclUnhandledCudaError,
    ncclSystemError,
    ncclInternalError,
    ncclInvalidArgument,
    ncclInvalidUsage,
    ncclRemoteError,
    ncclInProgress,
};
struct ncclConfig_t {
    int blocking;
    const char* commName;
};
#define NCCL_CONFIG_INITIALIZER {-1, nullptr}
enum ncclRedOp_t { ncclSum };
enum ncclDataType_t { ncclUint8 = 1, ncclUint64 = 5, ncclFloat32 = 7, ncclBfloat16 = 9 };

ncclResult_t ncclGetVersion(int* version);
ncclResult_t ncclGetUniqueId(ncclUniqueId*);
const char* ncclGetErrorString(ncclResult_t);
const char* ncclGetLastError(ncclComm_t);
ncclResult_t ncclCommInitRankConfig(ncclComm_t*, int nranks, ncclUniqueId, int rank, ncclConfig_t*);
ncclResult_t ncclCommSplit(ncclComm_t, int color, int key, ncclComm_t*, ncclConfig_t*);
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t*);
ncclResult_t ncclCommFinalize(ncclComm_t);
ncclResult_t ncclCommDestroy(ncclComm_t);
ncclResult_t ncclCommAbort(ncclComm_t);
ncclResult_t ncclMemAlloc(void**, size_t);
ncclResult_t ncclMemFree(void*);
ncclResult_t ncclCommRegister(ncclComm_t, void*, size_t, void** handle);
ncclResult_t ncclCommDeregister(ncclComm_t, void* handle);
ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t, int root, ncclComm_t,
                           cudaStream_t);
ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                           cudaStream_t);
ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t receive_count, ncclDataType_t, ncclRedOp_t,
                               ncclComm_t, cudaStream_t);
ncclResult_t ncclAllGather(const void* send, void* receive, size_t send_count, ncclDataType_t, ncclComm_t,
                           cudaStream_t);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t, int peer, ncclComm_t, cudaStream_t);
ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t, int peer, ncclComm_t, cudaStream_t);
