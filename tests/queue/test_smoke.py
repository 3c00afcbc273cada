from holdfast import Queue


def test_a_job_goes_from_add_to_complete(queue: Queue):
    queue.add({"to": "a@b.c"}, id="one")
    lease = queue.lease(30)
    assert lease is not None
    assert lease.json() == {"to": "a@b.c"}
    assert queue.complete(lease)
    assert queue.counts().leased == 0
