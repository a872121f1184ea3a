package queue

// Remembered is how many keys the queue knows.
func Remembered[T any](q *Queue[T]) int { return len(q.shares) }

// Counted is how many keys take memory.
func Counted(k *Keys) int { return len(k.states) }
