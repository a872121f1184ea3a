package capacity

// clipped keeps what others wrote short in messages.
func clipped(s string) string {
	const most = 60
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}

// finite tells whether x is a number that can be summed.
func finite(x float64) bool { return x-x == 0 }
