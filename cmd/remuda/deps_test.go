package main

import (
	"testing"

	"remuda/internal/testkit/linked"
)

func TestNothingUnderBUSLIsLinked(t *testing.T) {
	linked.RequireNoBUSL(t, linked.Packages(t))
}
