package bytesize_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/bytesize"
)

func TestText(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 562875597: "536.8 MiB", 40 << 30: "40 GiB",
		-1536 << 10: "-1.5 MiB", 5 << 50: "5120 TiB",
	} {
		require.Equal(t, want, bytesize.Text(n))
	}
}
