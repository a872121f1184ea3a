package raft_test

import "remuda/controller/state"

func init() { childCommands["annotate"] = func() state.Command { return new(state.Annotate) } }
