"""Operations behind the commands of a user: submit, show, change and end topologies."""
