package main

import (
	"testing"

	"remuda/internal/testkit/reference"
)

func TestReferenceCLI(t *testing.T) {
	reference.Section(t, "cli.md", "remuda-autoscaler", "## remuda-autoscaler\n\nThe nomad-autoscaler plugin prints this help for `remuda-autoscaler -h`.\n\n"+reference.Block("text", install))
}
