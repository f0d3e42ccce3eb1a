/* The size and place of everything in the structs: compiled with DLPack's own header and with ours, the two print the same. */
#ifdef WITH_DLPACK
#include <dlpack/dlpack.h>
#endif
#include <estafette.h>
#include <stdio.h>

#ifdef WITH_DLPACK
#ifdef DLPACK_FENCE_DLPACK_DECLARED
#error "dlpack_fence.h must use the header that was included first"
#endif
#else
#ifdef DLPACK_DLPACK_H_
#error "this is to test our own declarations"
#endif
#endif

#define SIZE(type) printf("%s %zu\n", #type, sizeof(type))
#define FIELD(type, field) printf("%s.%s %zu %zu\n", #type, #field, offsetof(type, field), sizeof(((type *)0)->field))
#define NUMBER(name) printf("%s %lld\n", #name, (long long)(name))

int main(void) {
  SIZE(DLPackVersion);
  FIELD(DLPackVersion, major);
  FIELD(DLPackVersion, minor);
  SIZE(DLDeviceType);
  SIZE(DLDevice);
  FIELD(DLDevice, device_type);
  FIELD(DLDevice, device_id);
  SIZE(DLDataTypeCode);
  SIZE(DLDataType);
  FIELD(DLDataType, code);
  FIELD(DLDataType, bits);
  FIELD(DLDataType, lanes);
  SIZE(DLTensor);
  FIELD(DLTensor, data);
  FIELD(DLTensor, device);
  FIELD(DLTensor, ndim);
  FIELD(DLTensor, dtype);
  FIELD(DLTensor, shape);
  FIELD(DLTensor, strides);
  FIELD(DLTensor, byte_offset);
  SIZE(DLManagedTensor);
  FIELD(DLManagedTensor, dl_tensor);
  FIELD(DLManagedTensor, manager_ctx);
  FIELD(DLManagedTensor, deleter);
  SIZE(DLManagedTensorVersioned);
  FIELD(DLManagedTensorVersioned, version);
  FIELD(DLManagedTensorVersioned, manager_ctx);
  FIELD(DLManagedTensorVersioned, deleter);
  FIELD(DLManagedTensorVersioned, flags);
  FIELD(DLManagedTensorVersioned, dl_tensor);
  SIZE(DLFence);
  FIELD(DLFence, device);
  FIELD(DLFence, release);
  FIELD(DLFence, reserved);
  SIZE(estafette_export_options);
  NUMBER(DLPACK_MAJOR_VERSION);
  NUMBER(DLPACK_MINOR_VERSION);
  NUMBER(DLPACK_FLAG_BITMASK_READ_ONLY);
  NUMBER(DLPACK_FLAG_BITMASK_IS_COPIED);
  NUMBER(DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED);
  NUMBER(kDLCPU);
  NUMBER(kDLCUDA);
  NUMBER(kDLCUDAHost);
  NUMBER(kDLOpenCL);
  NUMBER(kDLVulkan);
  NUMBER(kDLMetal);
  NUMBER(kDLVPI);
  NUMBER(kDLROCM);
  NUMBER(kDLROCMHost);
  NUMBER(kDLExtDev);
  NUMBER(kDLCUDAManaged);
  NUMBER(kDLOneAPI);
  NUMBER(kDLWebGPU);
  NUMBER(kDLHexagon);
  NUMBER(kDLMAIA);
  NUMBER(kDLTrn);
  NUMBER(kDLInt);
  NUMBER(kDLUInt);
  NUMBER(kDLFloat);
  NUMBER(kDLOpaqueHandle);
  NUMBER(kDLBfloat);
  NUMBER(kDLComplex);
  NUMBER(kDLBool);
  NUMBER(kDLFloat8_e3m4);
  NUMBER(kDLFloat8_e5m2);
  NUMBER(kDLFloat8_e8m0fnu);
  NUMBER(kDLFloat6_e2m3fn);
  NUMBER(kDLFloat6_e3m2fn);
  NUMBER(kDLFloat4_e2m1fn);
  return 0;
}
