package calendar_test

import (
	"testing"

	"remuda/internal/testkit/reference"
)

func TestReferenceConfiguration(t *testing.T) {
	reference.Section(t, "configuration.md", "calendar", "## Calendar of the dedicated set\n\nThe file of `remuda dedicated schedule`, in HCL.\n\n"+
		reference.Source(t, "controller/calendar").Overview(t, "Everything here is pure"))
}
