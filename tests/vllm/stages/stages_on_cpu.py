"""A plugin of vLLM, for tests: with it pipeline stages run on the CPU.

vLLM makes the buffers between stages in a run of the model before the first request, which it leaves out on the CPU in eager mode. Here they
are made when they are first needed.
"""

import functools


def register():
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    gather = GPUModelRunner.sync_and_gather_intermediate_tensors
    if getattr(gather, "makes_buffers", False):
        return

    @functools.wraps(gather)
    def made(runner, *arguments, **more):
        if runner.intermediate_tensors is None:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
            )
        return gather(runner, *arguments, **more)

    made.makes_buffers = True
    GPUModelRunner.sync_and_gather_intermediate_tensors = made
