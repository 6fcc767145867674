"""The JAAS files that docs/security.md shows are read, and give what it says."""

import re
from pathlib import Path

from stormkeeper.sasl import credentials, jaas

GUIDE = Path(__file__).parents[2] / "docs" / "security.md"


def test_the_guides_files_are_read():
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    files = [block for language, block in blocks if not language and "{" in block]
    sections = {}
    for text in files:
        sections |= jaas.parse(text, "docs/security.md")
    assert set(sections) == {
        "PacemakerDigest",
        "PacemakerScram",
        "PacemakerServer",
        "PacemakerClient",
        "Server",
        "Client",
    }
    assert credentials.user_password(sections["PacemakerDigest"]).username == "some username"
    users = credentials.user_passwords(sections["PacemakerScram"])
    assert set(users) == {"nimbus", "ui", "operator"}
    assert sections["PacemakerServer"].switch("useKeyTab")
    assert sections["PacemakerClient"].option("serviceName") == "pacemaker"
    assert credentials.user_password(sections["Client"]).username == "nimbus"
    assert set(credentials.user_passwords(sections["Server"])) == {"nimbus"}
