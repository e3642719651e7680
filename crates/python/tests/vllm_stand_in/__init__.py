"""Engines that call the connector as vLLM does, where neither vLLM nor torch is installed. (If `STAND_IN_TORCH` is set, torch is.)

=============  =====================================================================
module         what it is about
=============  =====================================================================
`vllm_names`   what the connector imports of vLLM
`torch_numpy`  what it asks of tensors, over numpy
`installed`    puts both where they are imported
`model`        which caches layers have, and what a prefill writes into them
`cache`        a rank's cache, in any layout
`late_cache`   one in the memory of a GPU, where steps are done later than they are submitted
`gpu`          what of a GPU's driver that takes
`torch_stream` the same by the torch that is installed
`blocks`       block tables, and blocks that are free
`request`      a request
`engine`       the scheduler's loop and the workers' steps
`fixtures`     pairs of engines for tests, and what they check
=============  =====================================================================

It has been written after vLLM 0.32. The tests in tests/vllm hold the connector against vLLM itself.
"""
