"""Outcomes of checks: a line each as they happen, a table at the end."""
import contextlib
import os
import sys
import time
import traceback


class Report:
    """Outcomes by group and driver."""

    def __init__(self, only):
        self.only, self.group, self.driver = only, "", ""
        self.rows, self.failures, self.start = {}, [], time.monotonic()

    @contextlib.contextmanager
    def check(self, name):
        """One check: it passes unless its body raises."""
        row = self.rows.setdefault((self.group, self.driver), [0, 0])
        begun = time.monotonic()
        try:
            yield
        except Exception:  # one failed check must not hide the others
            self.broken(name)
        else:
            row[0] += 1
            print(f"ok   {self.driver} · {self.group} · {name} ({time.monotonic() - begun:.2f} s)", flush=True)

    def broken(self, name):
        """Counts the exception being handled as a failure."""
        kind, error, trace = sys.exc_info()
        where = traceback.extract_tb(trace)[-1]
        self.rows.setdefault((self.group, self.driver), [0, 0])[1] += 1
        text = f"{self.driver} · {self.group} · {name}: {kind.__name__}: {error} ({os.path.basename(where.filename)}:{where.lineno})"
        self.failures.append(text)
        print(f"FAIL {text}", flush=True)

    def group_of(self, name, body, *args):
        """Runs the checks of a group, when wanted. An exception between them is a failure and ends the group."""
        self.group = name
        if self.only and not any(word in name for word in self.only):
            return
        try:
            body(*args)
        except Exception:
            self.broken("the group")

    def note(self, text):
        print(f"     {self.driver} · {self.group}: {text}", flush=True)

    def finish(self):
        width = max(len(group) for group, _ in self.rows) if self.rows else 5
        print(f"\n{'group':{width}}  {'driver':8}  passed  failed")
        for (group, driver), (passed, failed) in self.rows.items():
            print(f"{group:{width}}  {driver:8}  {passed:6}  {failed:6}")
        for failure in self.failures:
            print("FAIL", failure)
        passed, failed = (sum(row[i] for row in self.rows.values()) for i in (0, 1))
        print(f"{passed} passed, {failed} failed in {time.monotonic() - self.start:.0f} s")
        return 1 if failed or not passed else 0
