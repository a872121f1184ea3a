package cuda

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The sizes and offsets of cuda.h on 64-bit systems.
func TestStructsAreLaidOutAsTheDriverWantsThem(t *testing.T) {
	var p allocationProp
	assert.EqualValues(t, 32, unsafe.Sizeof(p))
	assert.EqualValues(t, 0, unsafe.Offsetof(p.kind))
	assert.EqualValues(t, 4, unsafe.Offsetof(p.handleTypes))
	assert.EqualValues(t, 8, unsafe.Offsetof(p.location))
	assert.EqualValues(t, 16, unsafe.Offsetof(p.win32))
	assert.EqualValues(t, 24, unsafe.Offsetof(p.flags))
	var a accessDesc
	assert.EqualValues(t, 12, unsafe.Sizeof(a))
	assert.EqualValues(t, 8, unsafe.Offsetof(a.flags))
}

func TestUUID(t *testing.T) {
	const text = "GPU-00102030-4050-6070-8090-a0b0c0d0e0f0"
	u, err := parseUUID(text)
	require.NoError(t, err)
	assert.Equal(t, text, formatUUID(u))
	mig, err := parseUUID("MIG-00102030-4050-6070-8090-A0B0C0D0E0F0")
	require.NoError(t, err)
	assert.Equal(t, u, mig)
	for _, bad := range []string{"", "GPU", "GPU-", "GPU-0010", "TPU-00102030-4050-6070-8090-a0b0c0d0e0f0", text + "00", "0"} {
		_, err := parseUUID(bad)
		require.ErrorContains(t, err, "must be a UUID", "%q", bad)
	}
}
