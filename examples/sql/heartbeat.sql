SELECT alive, cancelled, drain FROM aiopgq.heartbeat(:'worker');
