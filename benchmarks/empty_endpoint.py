"""The least that a FastAPI service does: parse the body and return it. What the guard's server is compared with."""

from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()


class Body(BaseModel):
    logits: list[list[float]]


@app.post("/v1/score")
async def score(body: Body) -> Body:
    return body
