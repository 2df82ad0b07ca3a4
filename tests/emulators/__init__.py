"""Servers of buckets for tests: S3 and Google Cloud Storage, with everything that goes wrong with them.

Fixtures, for every test (``tests/conftest.py``)::

    def test_it(gcs_bucket: Bucket, s3_bucket: Bucket) -> None:
        source = f"{gcs_bucket.url}/run/1000"             # gs://test-1/run/1000
        store = s3_bucket.store(prefix="run")             # an obstore store, to put and look
        gcs_bucket.emulator.faults.add(Refuse(SLOW_DOWN), operation="get", chance=0.01, times=None)
        reshard.convert(source, f"{s3_bucket.url}/run/1000", ...)
        assert gcs_bucket.emulator.log.count("get") < 40

The fixtures ``s3_bucket`` and ``gcs_bucket`` lend an empty bucket of the servers ``s3_server`` and ``gcs_server``, one of
each in a process of pytest, and set the environment variables by which clients reach it, so that code in this process and programs started from it see the same bucket. The server is as at its
start after each test. GCS is served by both of its APIs, over the same objects: the XML API, which obstore speaks, and the JSON API,
which gcsfs, google-cloud-storage, TensorStore and stock Orbax speak.

The servers are themselves checked. ``test_alike.py`` asks them, moto and Azurite the same by obstore. ``test_clients.py``
asks them by gcsfs, google-cloud-storage, boto3 and TensorStore, through the fixture ``cloud`` (a process of
``tests/oracles/cloud_process.py``), and ``tests/public/buckets/test_stock_orbax.py`` by stock Orbax.

``moto_bucket`` and ``azurite_bucket`` are the same on moto and on Azurite (``processes.py``), which are others' and have no
faults. Tests that take them belong to the xdist group ``moto`` or ``azurite``, so that each starts once.

A bucket's ``emulator`` (``server.py``) has

- ``faults``: ``add(fault, operation=, key=, header=, nth=, times=, chance=, seed=)`` gives the rule, which counts how often it
  ``struck``. Faults (``faults.py``): ``Refuse(error)`` with the errors of ``apis/error_answers.py``, ``Delay``, ``Hang``,
  ``Disconnect`` (with ``done=True`` the answer is lost after the thing was done), ``BreakAnswer``, ``BreakUpload``, ``Flip``, ``DoTwice``,
  ``DoLater`` and ``Call(function)``, which kills a process between two requests, or makes two meet;
- ``log`` (``request_log.py``): each request with its operation, key, range, headers, bytes and status; ``count``, ``counts``, ``of``;
- ``link``: ``WIDE_AREA`` or ``Link(latency_s, stream_bytes_per_s, total_bytes_per_s)``;
- ``options``: ``Options(page_keys=, least_part_bytes=, conditions="kept" | "ignored" | "refused")``;
- ``objects`` and ``uploads``: what is stored; ``objects.clock_offset_s`` makes its clock wrong.
"""
