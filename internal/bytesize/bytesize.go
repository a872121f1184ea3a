// Package bytesize writes sizes for people. (controller/modelfile reads and writes the
// exact ones of model files.)
package bytesize

import "fmt"

// Text writes a size of n bytes in the largest binary unit in which it is at least 1,
// with one decimal where it is not a whole number, as "16 GiB" or "-1.5 MiB".
func Text(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	v := float64(n)
	for (v >= 1024 || v <= -1024) && len(units) > 1 {
		v /= 1024
		units = units[1:]
	}
	if v == float64(int64(v)) {
		return fmt.Sprintf("%d %s", int64(v), units[0])
	}
	return fmt.Sprintf("%.1f %s", v, units[0])
}
