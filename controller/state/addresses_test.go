package state_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

func TestAddresses(t *testing.T) {
	l := newLog(t)
	l.must(model("m").upsert(), nodes("n"), &state.Plan{})
}

var _ = fmt.Sprint
