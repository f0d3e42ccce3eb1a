"""SYCL: the interface of its arrays. Its libraries have no current stream, and name their queues."""

from . import Kind


class KIND(Kind):
    """The devices of SYCL's runtime."""

    arrays = ("__sycl_usm_array_interface__",)
