package bytesize_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/internal/bytesize"
)

func TestParse(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "123": 123, "123B": 123, "4KiB": 4096, "256MiB": 256 << 20, "1GiB": 1 << 30, "2TiB": 2 << 40,
		"5KB": 5000, "5kB": 5000, "5MB": 5e6, "1GB": 1e9, "1TB": 1e12, "16 MiB": 16 << 20, "81559  MiB": 81559 << 20,
		"1.5GiB": 3 << 29, "0.5": 0, "0.3KiB": 307, "0012": 12, "9223372036854775807": math.MaxInt64,
	} {
		got, err := bytesize.Parse(in)
		require.NoError(t, err, in)
		require.Equal(t, want, got, in)
	}
	for in, want := range map[string]string{
		"": "want a number", "MiB": "want a number", "-1": "want a number", "+1": "want a number", "1QiB": "want a number", "1MiBs": "want a number",
		"12 34": "want a number", "256mib": "want a number", "0x10": "want a number", "1e9": "want a number", "1/2GiB": "want a number", "1_0GiB": "want a number",
		"1..5GiB": "want a number", ".5GiB": "want a number", "1.GiB": "want a number", " 80GiB": "want a number", "80GiB ": "want a number",
		"9999999TiB": "want less", "9223372036854775808": "want less", "99999999999999999999TiB": "want less", "999999999999999999999TiB": "want a number",
	} {
		_, err := bytesize.Parse(in)
		require.ErrorContains(t, err, want, in)
		require.ErrorContains(t, err, fmt.Sprintf("%q", in))
	}
}

func TestFormatIsReadBack(t *testing.T) {
	require.Equal(t, []string{"0B", "1536B", "3KiB", "16GiB", "1TiB"},
		[]string{bytesize.Format(0), bytesize.Format(1536), bytesize.Format(3 << 10), bytesize.Format(16 << 30), bytesize.Format(1 << 40)})
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, math.MaxInt64>>40).Draw(t, "n") << rapid.SampledFrom([]int{0, 10, 20, 30, 40}).Draw(t, "shift")
		got, err := bytesize.Parse(bytesize.Format(n))
		require.NoError(t, err)
		require.Equal(t, n, got)
	})
}

func TestText(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 562875597: "536.8 MiB", 40 << 30: "40 GiB",
		-1536 << 10: "-1.5 MiB", 5 << 50: "5120 TiB",
	} {
		require.Equal(t, want, bytesize.Text(n))
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"80GiB", "1.5TB", ".MiB", "1e9MiB", "512"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := bytesize.Parse(s); err == nil && n < 0 {
			t.Fatalf("Parse(%q) = %d", s, n)
		}
	})
}
