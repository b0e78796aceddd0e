"""The sabotages take away what they say: the lines that they break are there, and a store without a guard still stores."""

import asyncpg
import pytest

from tests.robustness.sabotage.__main__ import HERE, ROOT, SABOTAGES

PUT = """select stored_seq from memory.put('project:a', 'user:alice', $1, array_fill(''::text, array[2]),
    array_fill(null::timestamptz, array[2]), $2, array[1, 2], array_fill('x'::bytea, array[2]),
    array_fill(null::bytea, array[2]))"""


@pytest.mark.parametrize("name", [name for name, case in SABOTAGES.items() if case.edits])
def test_what_a_sabotage_of_code_breaks_is_there_once(name: str) -> None:
    for file, old, _ in SABOTAGES[name].edits:
        assert (ROOT / file).read_text().count(old) == 1


@pytest.mark.parametrize("file", sorted(case.sql for case in SABOTAGES.values() if case.sql))
async def test_a_store_without_a_guard_still_takes_one_batch_after_the_other(database_url: str, file: str) -> None:
    """Else a run would be red for want of a store, not for what the guard is there for."""
    database = await asyncpg.connect(database_url)
    try:
        await database.execute("select memory.open_bank('project:a')")
        await database.execute((HERE / file).read_text())
        seqs = [
            row[0]
            for at in range(3)
            for row in await database.fetch(PUT, [f"memory-{at}-1", f"memory-{at}-2"], [at + 1, at + 1])
        ]
        assert sorted(seqs) == [1, 2, 3, 4, 5, 6]
        assert await database.fetchval("select head from memory.heads where bank = 'project:a'") == 6
    finally:
        await database.close()
