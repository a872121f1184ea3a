package deviceplugin

import "os"

// sharedNodes are the device files that every program on any NVIDIA GPU needs.
var sharedNodes = []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}

// handoverOf looks at what the host has at this moment.
func handoverOf(s Settings) handover {
	h := handover{gmsSocketDir: s.GMSSocketDir, containers: s.Containers, simDir: s.SimDir}
	if s.GMSSocketDir != "" {
		info, err := os.Stat(s.GMSSocketDir)
		h.mountGMS = err == nil && info.IsDir()
	}
	if s.Containers == ContainersNodes {
		for _, node := range sharedNodes {
			if _, err := os.Stat(node); err == nil {
				h.sharedNodes = append(h.sharedNodes, node)
			}
		}
	}
	return h
}
