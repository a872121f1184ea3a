package agent

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// serverMetrics are of the server's host: the disk of its data directory, and with TLS the
// certificate that it has loaded.
func serverMetrics(dataDir string, certificateEnds time.Time) []prometheus.Collector {
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "remuda", Subsystem: "controller", Name: name, Help: help}, value)
	}
	disk := func(bytes func(unix.Statfs_t) uint64) func() float64 {
		return func() float64 {
			var fs unix.Statfs_t
			if err := unix.Statfs(dataDir, &fs); err != nil {
				return math.NaN() // neither full nor empty
			}
			return float64(bytes(fs))
		}
	}
	all := []prometheus.Collector{
		gauge("disk_free_bytes", "Bytes that the server can still write to the file system of its data_dir; NaN if that is unknown.",
			disk(func(fs unix.Statfs_t) uint64 { return fs.Bavail * uint64(fs.Bsize) })),
		gauge("disk_size_bytes", "Size of the file system of the server's data_dir; NaN if that is unknown.",
			disk(func(fs unix.Statfs_t) uint64 { return fs.Blocks * uint64(fs.Bsize) })),
	}
	if !certificateEnds.IsZero() {
		all = append(all, gauge("tls_certificate_expires_seconds", "Unix time when the certificate that the server has loaded expires. Only with TLS.",
			func() float64 { return float64(certificateEnds.Unix()) }))
	}
	return all
}
