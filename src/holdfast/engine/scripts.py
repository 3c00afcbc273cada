"""All transitions, and what the server must know of each before it runs one."""

from __future__ import annotations

from typing import Final

from holdfast.engine.script import Script

# Scripts that free or move work run on a full server, so that it can be drained.
# Those that add do not.
ADD: Final = Script("add")
ADD_GROUPED: Final = Script("add_grouped")
UPDATE: Final = Script("update")
TICK: Final = Script("tick")
LEASE: Final = Script("lease", "allow-oom")
COMPLETE: Final = Script("complete", "allow-oom")
COMPLETE_AND_ADD: Final = Script("complete_and_add")
RETRY: Final = Script("retry", "allow-oom")
FAIL: Final = Script("fail", "allow-oom")
RELEASE: Final = Script("release", "allow-oom")
EXTEND: Final = Script("extend", "allow-oom")
CANCEL: Final = Script("cancel", "allow-oom")
CANCEL_MATCHING: Final = Script("cancel_matching", "allow-oom")
REVIVE: Final = Script("revive", "allow-oom")
SET_RESULT: Final = Script("set_result")
RECALL: Final = Script("recall", "allow-oom")
REGISTER: Final = Script("register", "allow-oom")
TIDY: Final = Script("tidy", "allow-oom")
REPAIR: Final = Script("repair", "allow-oom")
RECOUNT: Final = Script("recount", "allow-oom")
OPEN_REQUEST: Final = Script("open_request")
ADD_PARTS: Final = Script("add_parts")
CHANGE_REQUEST: Final = Script("change_request", "allow-oom")
STAGE: Final = Script("stage")
ADOPT: Final = Script("adopt")
COMMIT: Final = Script("commit")
PUBLISH: Final = Script("publish")
ABORT: Final = Script("abort", "allow-oom")
OPEN_READER: Final = Script("open_reader", "allow-oom")
CLAIM: Final = Script("claim", "allow-oom")
RENEW_CLAIMS: Final = Script("renew_claims", "allow-oom")
SETTLE_CLAIMS: Final = Script("settle_claims", "allow-oom")
RETURN_CLAIM: Final = Script("return_claim", "allow-oom")
PAUSE: Final = Script("pause", "allow-oom")
RESUME: Final = Script("resume", "allow-oom")
DELETE: Final = Script("delete", "allow-oom")
COUNTS: Final = Script("counts", "no-writes")
TOTALS: Final = Script("totals", "no-writes")
RIGHTS: Final = Script("rights", "no-writes")
SHOW: Final = Script("show", "no-writes")
PEEK: Final = Script("peek", "no-writes")
WORKERS: Final = Script("workers", "no-writes")
AUDIT: Final = Script("audit", "no-writes")
REQUESTS: Final = Script("requests", "no-writes")
PARTS: Final = Script("parts", "no-writes")
LEDGER: Final = Script("ledger", "no-writes")
READ_CLAIM: Final = Script("read_claim", "no-writes")

SCRIPTS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Script))
