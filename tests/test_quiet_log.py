"""What Postgres logs of a refused write names no row."""

import asyncpg
import pytest

from stack.postgres import Postgres


async def test_a_refused_row_is_not_quoted_in_the_log(postgres: Postgres, database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    for bank in ("nolayer-Zqlog0", "nolayer:Zqlog1", "private:", "client:Zqlog2:"):
        with pytest.raises(asyncpg.CheckViolationError) as caught:
            await connection.execute("select memory.open_bank($1)", bank)
        assert (
            caught.value.constraint_name in ("scope_of_layer", "ids_of_layer") and caught.value.detail is None
        )
    await connection.execute("insert into memory.memory_ids values ('Zqlog3', 'b')")
    with pytest.raises(asyncpg.UniqueViolationError):
        await connection.execute("insert into memory.memory_ids values ($1, 'b')", "Zqlog3")
    await connection.close()
    assert postgres.log_path is not None
    log = postgres.log_path.read_text(errors="replace")
    assert (
        "a bank id is a layer" in log
        and "duplicate key" in log
        and "Zqlog" not in log.replace("values ('Zqlog3'", "")
    )
