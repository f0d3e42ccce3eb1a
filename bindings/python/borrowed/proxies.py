"""NumPy and dpnp, with our tensors where their arrays are exchanged."""

import types


class Proxy(types.ModuleType):
    """NumPy but for what a subclass says."""

    def __init__(self, numpy, engine):
        super().__init__("numpy")
        self.__dict__.update(_numpy=numpy, _engine=engine)

    def __getattr__(self, name):
        return getattr(self._numpy, name)


class Middleman(Proxy):
    """Whatever NumPy takes has been a tensor of Estafette on the way."""

    def from_dlpack(self, array, **arguments):
        return self._numpy.from_dlpack(self._engine.from_dlpack(array), **arguments)


class Producer(Proxy):
    """NumPy's arrays, exported by us: each `__dlpack__` is that of a tensor in the array's memory."""

    def __init__(self, numpy, engine):
        super().__init__(numpy, engine)

        class Array(numpy.ndarray):
            def __dlpack__(self, **arguments):
                return engine.from_dlpack(self.view(numpy.ndarray)).__dlpack__(**arguments)

            def __dlpack_device__(self):
                return engine.from_dlpack(self.view(numpy.ndarray)).__dlpack_device__()

        def ours(make):
            def made(*arguments, **named):
                array = make(*arguments, **named)
                # With memory of its own: NumPy's views refer to its owner, and the tests count references.
                own = numpy.ndarray.__new__(Array, array.shape, array.dtype)
                own[...] = array
                return own

            return made

        self.ndarray = Array
        for name in ("arange", "array", "asarray", "zeros", "ones", "diagonal"):
            setattr(self, name, ours(getattr(numpy, name)))


class DpnpMiddleman(types.ModuleType):
    """`dpnp.tensor`, or its module `_dlpack`: whatever dpnp takes, an array or a capsule, has been a tensor of Estafette on the way."""

    def __init__(self, module, engine):
        super().__init__(module.__name__)
        self.__dict__.update(_module=module, _engine=engine)

    def __getattr__(self, name):
        return getattr(self._module, name)

    def from_dlpack(self, array, **arguments):
        return self._module.from_dlpack(self._engine.from_dlpack(array), **arguments)

    def from_dlpack_capsule(self, capsule):
        # Whichever struct came, the newer one goes on, since memory lent for reading is flagged in no other.
        newest = self._module.get_build_dlpack_version()
        return self._module.from_dlpack_capsule(self._engine.from_dlpack(capsule).__dlpack__(max_version=newest))
