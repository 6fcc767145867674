"""Whatever is to hold with both engines asks for an `engine`."""

import pytest

from support.engines import ENGINES


@pytest.fixture(params=ENGINES)
def engine(request):
    return request.param
