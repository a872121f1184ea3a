package nvml_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/nvml"
)

// TestScribbledRecord: whatever a library writes into the page of its worker, the name of a call is a label of a metric.
func TestScribbledRecord(t *testing.T) {
	t.Parallel()
	fd, err := unix.MemfdCreate("calls", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Ftruncate(fd, (1+nvml.MaxGPUs)*64))
	r, err := nvml.OpenRecord(fd)
	require.NoError(t, err)
	r.Enter(0, "nvml\xff\xfeInit")
	symbol, _ := r.Call(0)
	require.Equal(t, "nvml?Init", symbol)
}
