"""The C face of kvcache for Cython: ``from kvcache.c cimport kvcache_cache_create``.

kvcache/c.h says what each call does. An extension is compiled with the package's ``include`` folder
and linked with ``lib/libkvcache.a`` and the C++ runtime; both lie in the package.
"""

from kvcache.c_base cimport *
from kvcache.c_cache cimport *
from kvcache.c_draft cimport *
from kvcache.c_engine cimport *
from kvcache.c_lookup cimport *
from kvcache.c_pool cimport *
from kvcache.c_sequence cimport *
from kvcache.c_store cimport *
from kvcache.c_verify cimport *
