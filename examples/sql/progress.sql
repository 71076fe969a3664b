SELECT owned, cancel_requested FROM aiopgq.report_progress(:'id', :'claim_id', 40, 'rendering');
